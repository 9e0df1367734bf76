"""GroupNorm+SiLU kernels for channels-last activations: rows of C adjacent channels, read and written as found.

A tile is (BR rows, BC channels), BC = GB groups of CGP columns; CGP is the group's channels rounded up to a power of
two. Row offsets are int64.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.groupnorm_silu.kernels.tiles import merge_lanes, normalise_silu


@triton.jit
def _columns(block, C, G, CG: tl.constexpr, CGP: tl.constexpr, GB: tl.constexpr):
    """Channel of each column of channel block `block`, and whether there is one, (GB * CGP,)."""
    column = tl.arange(0, GB * CGP)
    if CG == CGP:
        channel = block * (GB * CGP) + column
        valid = channel < C
    else:
        group = block * GB + column // CGP
        within = column % CGP
        channel = group * CG + within
        valid = (group < G) & (within < CG)
    return channel, valid


@triton.jit
def _row_offset(row, H, W, s_t, s_h, s_w, SINGLE_STRIDE: tl.constexpr):
    """Element offset of each row of channels; with SINGLE_STRIDE rows are s_w apart."""
    if SINGLE_STRIDE:
        offset = row.to(tl.int64) * s_w
    else:
        line = row // W
        frame = line // H
        offset = frame.to(tl.int64) * s_t + (line - frame * H).to(tl.int64) * s_h + (row - line * W).to(tl.int64) * s_w
    return offset


@triton.jit
def groupnorm_silu_rows_stats(
    x_ptr, mean_ptr, m2_ptr, chunks, chunk, blocks, C, G, S, H, W, x_n, x_t, x_h, x_w,
    CG: tl.constexpr, CGP: tl.constexpr, GB: tl.constexpr, BR: tl.constexpr, UNROLL: tl.constexpr,
    SINGLE_STRIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Partial mean and M2 of GB groups over one chunk of rows; partials are (N, chunks, G)."""
    if PDL:
        gdc_launch_dependents()
    # last rows first, so that the apply pass starts with what L2 saw last
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    block = pid % blocks
    k = (pid // blocks) % chunks
    n = pid // (blocks * chunks)
    channel, channel_valid = _columns(block, C, G, CG, CGP, GB)
    x_ptr += n.to(tl.int64) * x_n + channel[None, :]
    begin = k * chunk
    end = tl.minimum(begin + chunk, S)

    rows = tl.arange(0, BR)
    row = begin + rows
    valid = (row < end)[:, None] & channel_valid[None, :]
    offset = _row_offset(row, H, W, x_t, x_h, x_w, SINGLE_STRIDE)
    first = tl.load(x_ptr + offset[:, None], mask=valid, other=0.0).to(tl.float32)
    s1 = tl.zeros((BR, GB * CGP), tl.float32)
    s2 = tl.zeros((BR, GB * CGP), tl.float32)
    start = begin + BR
    while start < end:
        for u in tl.static_range(UNROLL):
            r = start + u * BR + rows
            valid = (r < end)[:, None] & channel_valid[None, :]
            o = _row_offset(r, H, W, x_t, x_h, x_w, SINGLE_STRIDE)
            x = tl.load(x_ptr + o[:, None], mask=valid, other=0.0).to(tl.float32)
            d = tl.where(valid, x - first, 0.0)
            s1 += d
            s2 += d * d
        start += BR * UNROLL
    tiles = tl.maximum((end - row + BR - 1) // BR, 0).to(tl.float32)[:, None]
    tiles = tl.where(channel_valid[None, :], tiles, 0.0)
    lane_mean, lane_m2 = merge_lanes(first, s1, s2, tiles)
    # channels first, within a thread: summing rows first sends every channel through shared memory, with bank conflicts
    tiles = tl.reshape(tl.broadcast_to(tiles, (BR, GB * CGP)), (BR, GB, CGP))
    lane_mean = tl.reshape(lane_mean, (BR, GB, CGP))
    lane_m2 = tl.reshape(lane_m2, (BR, GB, CGP))
    inverse = 1.0 / tl.maximum((end - begin) * CG, 1).to(tl.float32)
    mean = tl.sum(tl.sum(lane_mean * tiles, 2), 0) * inverse
    delta = lane_mean - mean[None, :, None]
    m2 = tl.sum(tl.sum(lane_m2 + tiles * delta * delta, 2), 0)
    group = block * GB + tl.arange(0, GB)
    slot = (n * chunks + k).to(tl.int64) * G + group
    tl.store(mean_ptr + slot, mean, mask=group < G)
    tl.store(m2_ptr + slot, m2, mask=group < G)


@triton.jit
def groupnorm_silu_rows_apply(
    x_ptr, bias_ptr, out_ptr, channel_ptr, spans, span, blocks, NC, C, G, S, H, W,
    x_n, x_t, x_h, x_w, o_n, o_t, o_h, o_w,
    CG: tl.constexpr, CGP: tl.constexpr, GB: tl.constexpr, BR: tl.constexpr,
    SINGLE_STRIDE: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`span` rows of GB groups, BR at a time; grid (N * spans * blocks,)."""
    pid = tl.program_id(0)
    block = pid % blocks
    n = pid // (blocks * spans)
    begin = ((pid // blocks) % spans) * span
    end = tl.minimum(begin + span, S)
    channel, channel_valid = _columns(block, C, G, CG, CGP, GB)
    x_ptr += n.to(tl.int64) * x_n + channel[None, :]
    out_ptr += n.to(tl.int64) * o_n + channel[None, :]
    rows = tl.arange(0, BR)
    # neither x nor the bias comes from the kernels before, so they may be read before those have ended
    row = begin + rows
    valid = (row < end)[:, None] & channel_valid[None, :]
    x = tl.load(x_ptr + _row_offset(row, H, W, x_t, x_h, x_w, SINGLE_STRIDE)[:, None], mask=valid, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=channel_valid, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    slot = n * C + channel
    # .cg: written since this kernel may have started, so L1 must not answer
    mean = tl.load(channel_ptr + slot, mask=channel_valid, other=0.0, cache_modifier=".cg")
    scale = tl.load(channel_ptr + NC + slot, mask=channel_valid, other=0.0, cache_modifier=".cg")
    while begin < end:
        y = normalise_silu(x.to(tl.float32), mean[None, :], scale[None, :], bias[None, :], ASM)
        row = begin + rows
        valid = (row < end)[:, None] & channel_valid[None, :]
        out_offset = _row_offset(row, H, W, o_t, o_h, o_w, SINGLE_STRIDE)[:, None]
        following = row + BR
        next_valid = (following < end)[:, None] & channel_valid[None, :]
        x_offset = _row_offset(following, H, W, x_t, x_h, x_w, SINGLE_STRIDE)[:, None]
        x = tl.load(x_ptr + x_offset, mask=next_valid, other=0.0)
        tl.store(out_ptr + out_offset, y.to(out_ptr.dtype.element_ty), mask=valid, eviction_policy="evict_first")
        begin += BR
