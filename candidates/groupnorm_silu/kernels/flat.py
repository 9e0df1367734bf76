"""GroupNorm+SiLU kernels that walk a group in logical order (channel-major): NCHW and any strided view of it.

A tile is (BLOCK // VEC, VEC): the VEC elements of a row are one vector access and share a channel, so the channel's
index costs one division per vector. Offsets from the tensor's start are int64; inside a group they are int64 only when
INDEX64 (groups over 2^30 elements).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.groupnorm_silu.kernels.tiles import (
    merge_chunks,
    merge_lanes,
    normalise_silu,
)


@triton.jit
def _tile_index(start, BLOCK: tl.constexpr, VEC: tl.constexpr, INDEX64: tl.constexpr):
    """Logical index in the group of each vector's first element, (BLOCK // VEC, 1)."""
    vector = tl.arange(0, BLOCK // VEC) * VEC
    if INDEX64:
        vector = vector.to(tl.int64)
    else:
        start = tl.cast(start, tl.int32)
    return (start + vector)[:, None]


@triton.jit
def _offset(index, S, H, W, s_c, s_t, s_h, s_w, VEC: tl.constexpr, DENSE: tl.constexpr):
    """Element offsets from the group's start, (BLOCK // VEC, VEC)."""
    lane = tl.arange(0, VEC)[None, :]
    if DENSE:
        offset = index + lane
    else:
        channel = index // S
        s = index - channel * S
        row = s // W
        frame = row // H
        offset = channel.to(tl.int64) * s_c + frame.to(tl.int64) * s_t + (row - frame * H).to(tl.int64) * s_h
        offset = offset + (s - row * W).to(tl.int64) * s_w + lane
    return offset


@triton.jit
def _group_base(ng, G, CG, s_n, s_c, VEC: tl.constexpr, DENSE: tl.constexpr):
    """Element offset of group `ng` of all images' groups."""
    base = (ng // G).to(tl.int64) * s_n + (ng % G).to(tl.int64) * CG * s_c
    if DENSE:
        # the channel stride is the spatial size, which VEC divides
        base = tl.multiple_of(base, VEC)
    return base


@triton.jit
def _moments(
    x_ptr, begin, end, S, H, W, s_c, s_t, s_h, s_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, UNROLL: tl.constexpr, DENSE: tl.constexpr, INDEX64: tl.constexpr,
):  # fmt: skip
    """Mean and M2 of the group's elements begin..end (a multiple of VEC of them, possibly none)."""
    index = _tile_index(begin, BLOCK, VEC, INDEX64)
    offset = _offset(index, S, H, W, s_c, s_t, s_h, s_w, VEC, DENSE)
    first = tl.load(x_ptr + offset, mask=index < end, other=0.0).to(tl.float32)
    s1 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    s2 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    start = begin + BLOCK
    while start < end:
        for u in tl.static_range(UNROLL):
            i = _tile_index(start + u * BLOCK, BLOCK, VEC, INDEX64)
            o = _offset(i, S, H, W, s_c, s_t, s_h, s_w, VEC, DENSE)
            x = tl.load(x_ptr + o, mask=i < end, other=0.0).to(tl.float32)
            d = tl.where(i < end, x - first, 0.0)
            s1 += d
            s2 += d * d
        start += BLOCK * UNROLL
    tiles = tl.maximum((end - index + BLOCK - 1) // BLOCK, 0).to(tl.float32)
    lane_mean, lane_m2 = merge_lanes(first, s1, s2, tiles)
    mean = tl.sum(lane_mean * tiles) / tl.maximum((end - begin).to(tl.float32), 1.0)
    delta = lane_mean - mean
    return mean, tl.sum(lane_m2 + tiles * delta * delta)


@triton.jit
def _apply(
    x, weight_ptr, bias_ptr, out_ptr, index, end, mean, rstd, S, H, W, o_c, o_t, o_h, o_w,
    VEC: tl.constexpr, DENSE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Normalise, scale, SiLU and store one tile."""
    valid = index < end
    channel = index // S
    weight = tl.load(weight_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    y = normalise_silu(x.to(tl.float32), mean, weight * rstd, bias, ASM)
    offset = _offset(index, S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE)
    tl.store(out_ptr + offset, y.to(out_ptr.dtype.element_ty), mask=valid, eviction_policy="evict_first")


@triton.jit
def groupnorm_silu_flat_stats(
    x_ptr, mean_ptr, m2_ptr, chunks, chunk, G, CG, S, H, W, x_n, x_c, x_t, x_h, x_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, UNROLL: tl.constexpr, DENSE: tl.constexpr, INDEX64: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Partial mean and M2 of one chunk of one group; partials are (N * G, chunks)."""
    if PDL:
        gdc_launch_dependents()
    # last chunk first, so that the apply pass starts with what L2 saw last
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    x_ptr += _group_base(pid // chunks, G, CG, x_n, x_c, VEC, DENSE)
    size = tl.cast(CG, tl.int64) * S
    begin = (pid % chunks).to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, size)
    mean, m2 = _moments(x_ptr, begin, end, S, H, W, x_c, x_t, x_h, x_w,
                        BLOCK, VEC, UNROLL, DENSE, INDEX64)  # fmt: skip
    tl.store(mean_ptr + pid, mean)
    tl.store(m2_ptr + pid, m2)


@triton.jit
def groupnorm_silu_flat_apply(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, m2_ptr, eps, chunks, chunk, tiles, G, CG, S, H, W,
    x_n, x_c, x_t, x_h, x_w, o_n, o_c, o_t, o_h, o_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, CHUNKS_PAD: tl.constexpr, DENSE: tl.constexpr, INDEX64: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile of one group, normalised with the merged partials; grid (N * G * tiles,)."""
    pid = tl.program_id(0)
    ng = pid // tiles
    g = ng % G
    size = tl.cast(CG, tl.int64) * S
    index = _tile_index((pid % tiles).to(tl.int64) * BLOCK, BLOCK, VEC, INDEX64)
    # x does not come from the statistics kernel, so it may be read before that has ended
    offset = _offset(index, S, H, W, x_c, x_t, x_h, x_w, VEC, DENSE)
    x_ptr += _group_base(ng, G, CG, x_n, x_c, VEC, DENSE)
    x = tl.load(x_ptr + offset, mask=index < size, other=0.0)
    if PDL:
        gdc_wait()
    first = ng.to(tl.int64) * chunks
    mean, rstd = merge_chunks(mean_ptr + first, m2_ptr + first, 1, chunks, chunk, 1, size, eps, CHUNKS_PAD)
    out_ptr += _group_base(ng, G, CG, o_n, o_c, VEC, DENSE)
    _apply(x, weight_ptr + g * CG, bias_ptr + g * CG, out_ptr, index, size, mean, rstd,
           S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE, ASM)  # fmt: skip
