"""GroupNorm+SiLU for channels-last activations in one launch that reads x once, or most of it twice.

Every program keeps its rows, or the last of them, in registers while the programs of its groups wait for each other
between the statistics and the pointwise part. Tiles are those of the rows kernels.
"""

import triton
import triton.language as tl

from candidates.groupnorm_silu.kernels.barrier import held, read_word, wait_for_all
from candidates.groupnorm_silu.kernels.rows import _columns
from candidates.groupnorm_silu.kernels.tiles import merge_around, merge_lanes, normalise_silu_paired


@triton.jit
def _load(x_ptr, row, end, x_row, channel_valid):
    return tl.load(x_ptr + row.to(tl.int64)[:, None] * x_row, mask=_mask(row, end, channel_valid), other=0.0)


@triton.jit
def _mask(row, end, channel_valid):
    return (row < end)[:, None] & channel_valid[None, :]


@triton.jit
def groupnorm_silu_rows_resident(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, m2_ptr, words_ptr, eps, chunks, chunk, stream, blocks, C, G, S,
    x_n, x_row, out_n, out_row,
    CG: tl.constexpr, CGP: tl.constexpr, GB: tl.constexpr, BR: tl.constexpr, TILES: tl.constexpr,
    CHUNKS_PAD: tl.constexpr, STREAM: tl.constexpr, UNROLL: tl.constexpr, BARRIER: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`chunk` rows of GB groups; grid (N * chunks * blocks,); partials are (N, chunks, G).

    TILES * BR rows are kept. STREAM: `stream` more, a multiple of UNROLL * BR, come before them and are read twice.
    BARRIER: there are several chunks, and words_ptr holds a word for each channel block of each image.
    """
    pid = tl.program_id(0)
    block = pid % blocks
    k = (pid // blocks) % chunks
    n = pid // (blocks * chunks)
    channel, channel_valid = _columns(block, C, G, CG, CGP, GB)
    begin = k * chunk
    end = tl.minimum(begin + chunk, S)
    row = begin + tl.arange(0, BR)
    words_ptr += n * blocks + block
    if BARRIER:
        before = read_word(words_ptr)
    x_ptr += n.to(tl.int64) * x_n + channel[None, :]
    out_ptr += n.to(tl.int64) * out_n + channel[None, :]
    tiles = tl.maximum((end - row + BR - 1) // BR, 0).to(tl.float32)[:, None]
    tiles = tl.where(channel_valid[None, :], tiles, 0.0)
    s1 = tl.zeros((BR, GB * CGP), tl.float32)
    s2 = tl.zeros((BR, GB * CGP), tl.float32)
    if STREAM:
        first = _load(x_ptr, row, end, x_row, channel_valid).to(tl.float32)
        streamed = 0
        while streamed < stream:
            for i in tl.static_range(UNROLL):
                r = begin + streamed + i * BR + tl.arange(0, BR)
                x = _load(x_ptr, r, end, x_row, channel_valid).to(tl.float32)
                d = tl.where(_mask(r, end, channel_valid), x - first, 0.0)
                s1 += d
                s2 += d * d
            streamed += UNROLL * BR
        row += stream

    x_at = x_ptr + row.to(tl.int64)[:, None] * x_row
    xs = ()
    for i in tl.static_range(TILES):
        xs += (tl.load(x_at, mask=_mask(row + i * BR, end, channel_valid), other=0.0),)
        x_at += BR * tl.cast(x_row, tl.int64)
    weight = tl.load(weight_ptr + channel, mask=channel_valid, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=channel_valid, other=0.0)

    if not STREAM:
        first = xs[0].to(tl.float32)
    for i in tl.static_range(0 if STREAM else 1, TILES):
        d = tl.where(_mask(row + i * BR, end, channel_valid), xs[i].to(tl.float32) - first, 0.0)
        s1 += d
        s2 += d * d
    lane_mean, lane_m2 = merge_lanes(first, s1, s2, tiles)
    # channels first, within a thread and its neighbour
    tiles = tl.reshape(tl.broadcast_to(tiles, (BR, GB * CGP)), (BR, GB, CGP))
    lane_mean = tl.reshape(lane_mean, (BR, GB, CGP))
    lane_m2 = tl.reshape(lane_m2, (BR, GB, CGP))
    inverse = 1.0 / tl.maximum((end - begin) * CG, 1).to(tl.float32)
    mean = tl.sum(tl.sum(lane_mean * tiles, 2), 0) * inverse
    delta = lane_mean - mean[None, :, None]
    m2 = tl.sum(tl.sum(lane_m2 + tiles * delta * delta, 2), 0)

    total = tl.cast(S, tl.float32) * CG
    if BARRIER:
        group = block * GB + tl.arange(0, GB)
        slot = n.to(tl.int64) * chunks * G + group
        tl.store(mean_ptr + slot + k * G, mean, mask=group < G)
        tl.store(m2_ptr + slot + k * G, m2, mask=group < G)
        if ASM:
            wait_for_all(words_ptr, before, chunks, k == 0)
        ks = tl.arange(0, CHUNKS_PAD)
        there = (ks < chunks)[:, None] & (group < G)[None, :]
        partial = slot[None, :] + (ks * G)[:, None]
        # .cg: other SMs wrote them, so L1 must not answer
        reference = tl.load(mean_ptr + slot, mask=group < G, other=0.0, cache_modifier=".cg")
        mean_k = tl.load(mean_ptr + partial, mask=there, other=0.0, cache_modifier=".cg")
        m2_k = tl.load(m2_ptr + partial, mask=there, other=0.0, cache_modifier=".cg")
        count_k = tl.where(ks < chunks, tl.minimum(S - ks * chunk, chunk) * CG, 0).to(tl.float32)
        shift, variance = merge_around(mean_k - reference[None, :], m2_k, count_k[:, None], total)
        mean = reference + shift
    else:
        variance = m2 / total
    rstd = tl.rsqrt(variance + eps)
    mean = tl.reshape(tl.broadcast_to(mean[:, None], (GB, CGP)), (1, GB * CGP))
    rstd = tl.reshape(tl.broadcast_to(rstd[:, None], (GB, CGP)), (1, GB * CGP))
    scale = weight.to(tl.float32)[None, :] * rstd
    bias = bias.to(tl.float32)[None, :]

    zero = (end < 0).to(tl.int32)
    if STREAM:
        # latest first, while L2 has it; on their way while the held tiles are written
        stream -= UNROLL * BR
        ys = ()
        for i in tl.static_range(UNROLL):
            ys += (_load(x_ptr, begin + stream + i * BR + tl.arange(0, BR), end, x_row, channel_valid),)
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_row
    for i in tl.static_range(TILES):
        y = normalise_silu_paired(held(xs[i], zero, ASM).to(tl.float32), mean, scale, bias, ASM)
        tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=_mask(row + i * BR, end, channel_valid))
        out_at += BR * tl.cast(out_row, tl.int64)
    if STREAM:
        while stream >= 0:
            ahead = stream - UNROLL * BR
            zs = ()
            for i in tl.static_range(UNROLL):
                r = begin + ahead + i * BR + tl.arange(0, BR)
                zs += (_load(x_ptr, tl.where(ahead < 0, end, r), end, x_row, channel_valid),)
            for i in tl.static_range(UNROLL):
                r = begin + stream + i * BR + tl.arange(0, BR)
                y = normalise_silu_paired(ys[i].to(tl.float32), mean, scale, bias, ASM)
                out_at = out_ptr + r.to(tl.int64)[:, None] * out_row
                tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=_mask(r, end, channel_valid))
            ys = zs
            stream = ahead
