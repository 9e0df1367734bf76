"""GroupNorm+SiLU kernels for channels-last activations: rows of C adjacent channels, read and written as found.

A tile is (BR rows, BC channels), BC = GB groups of CGP columns; CGP is the group's channels rounded up to a power of
two. Row offsets are int64.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.groupnorm_silu.kernels.tiles import merge_chunks, merge_lanes, normalise_silu


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
    """Partial mean and M2 of GB groups over one chunk of rows; partials are (N * G, chunks)."""
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
    inverse = 1.0 / tl.maximum((end - begin) * CG, 1).to(tl.float32)
    mean = tl.sum(tl.reshape(tl.sum(lane_mean * tiles, 0), (GB, CGP)), 1) * inverse
    channel_mean = tl.reshape(tl.broadcast_to(mean[:, None], (GB, CGP)), (GB * CGP,))
    delta = lane_mean - channel_mean[None, :]
    m2 = tl.sum(tl.reshape(tl.sum(lane_m2 + tiles * delta * delta, 0), (GB, CGP)), 1)
    group = block * GB + tl.arange(0, GB)
    slot = (n * G + group).to(tl.int64) * chunks + k
    tl.store(mean_ptr + slot, mean, mask=group < G)
    tl.store(m2_ptr + slot, m2, mask=group < G)


@triton.jit
def groupnorm_silu_rows_merge(
    mean_ptr, m2_ptr, merged_ptr, eps, chunks, chunk, S, CG, PAD: tl.constexpr, PDL: tl.constexpr
):
    """Mean and 1 / sqrt(variance + eps) of one group from its partials into merged (2, N * G); grid (N * G,)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    ng = tl.program_id(0)
    first = ng.to(tl.int64) * chunks
    mean, rstd = merge_chunks(mean_ptr + first, m2_ptr + first, chunks, chunk, CG, S, eps, PAD)
    tl.store(merged_ptr + ng, mean)
    tl.store(merged_ptr + tl.num_programs(0) + ng, rstd)


@triton.jit
def groupnorm_silu_rows_apply(
    x_ptr, weight_ptr, bias_ptr, out_ptr, merged_ptr, NG, tiles, blocks, C, G, S, H, W,
    x_n, x_t, x_h, x_w, o_n, o_t, o_h, o_w,
    CG: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr, SINGLE_STRIDE: tl.constexpr, ASM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile, normalised with the merged statistics; grid (N * tiles * blocks,)."""
    pid = tl.program_id(0)
    n = pid // (blocks * tiles)
    row = ((pid // blocks) % tiles) * BR + tl.arange(0, BR)
    channel = (pid % blocks) * BC + tl.arange(0, BC)
    valid = (row < S)[:, None] & (channel < C)[None, :]
    x_row = n.to(tl.int64) * x_n + _row_offset(row, H, W, x_t, x_h, x_w, SINGLE_STRIDE)
    # neither x nor the weights come from the kernels before, so they may be read before those have ended
    x = tl.load(x_ptr + x_row[:, None] + channel[None, :], mask=valid, other=0.0)
    weight = tl.load(weight_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    ng = n * G + channel // CG
    mean = tl.load(merged_ptr + ng, mask=channel < C, other=0.0, cache_modifier=".cg")
    rstd = tl.load(merged_ptr + NG + ng, mask=channel < C, other=0.0, cache_modifier=".cg")
    y = normalise_silu(x.to(tl.float32), mean[None, :], (weight * rstd)[None, :], bias[None, :], ASM)
    out_row = n.to(tl.int64) * o_n + _row_offset(row, H, W, o_t, o_h, o_w, SINGLE_STRIDE)
    tl.store(
        out_ptr + out_row[:, None] + channel[None, :],
        y.to(out_ptr.dtype.element_ty),
        mask=valid,
        eviction_policy="evict_first",
    )
