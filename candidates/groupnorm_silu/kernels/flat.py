"""GroupNorm+SiLU kernels that walk a group in logical order (channel-major): NCHW and any strided view of it.

A tile is (BLOCK // VEC, VEC): the VEC elements of a row are one vector access and share a channel, so the channel's
index costs one division per vector. Offsets from the tensor's start are int64; inside a group they are int64 only when
INDEX64 (groups over 2^30 elements).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.groupnorm_silu.kernels.tiles import merge_chunks, merge_lanes, normalise_silu


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
def _moments(
    x_ptr, begin, end, S, H, W, s_c, s_t, s_h, s_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, UNROLL: tl.constexpr, DENSE: tl.constexpr, INDEX64: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """Mean and M2 of the group's elements begin..end (a multiple of VEC of them, possibly none)."""
    index = _tile_index(begin, BLOCK, VEC, INDEX64)
    offset = _offset(index, S, H, W, s_c, s_t, s_h, s_w, VEC, DENSE)
    first = tl.load(x_ptr + offset, mask=index < end, other=0.0, eviction_policy=POLICY).to(tl.float32)
    s1 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    s2 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    start = begin + BLOCK
    while start < end:
        for u in tl.static_range(UNROLL):
            i = _tile_index(start + u * BLOCK, BLOCK, VEC, INDEX64)
            o = _offset(i, S, H, W, s_c, s_t, s_h, s_w, VEC, DENSE)
            x = tl.load(x_ptr + o, mask=i < end, other=0.0, eviction_policy=POLICY).to(tl.float32)
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
    VEC: tl.constexpr, DENSE: tl.constexpr, POLICY: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Normalise, scale, SiLU and store one tile."""
    valid = index < end
    channel = index // S
    weight = tl.load(weight_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    y = normalise_silu(x.to(tl.float32), mean, weight * rstd, bias, ASM)
    offset = _offset(index, S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE)
    tl.store(out_ptr + offset, y.to(out_ptr.dtype.element_ty), mask=valid, eviction_policy=POLICY)


@triton.jit
def groupnorm_silu_flat_single(
    x_ptr, weight_ptr, bias_ptr, out_ptr, eps, G, CG, S, H, W,
    x_n, x_c, x_t, x_h, x_w, o_n, o_c, o_t, o_h, o_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, DENSE: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """One program per group, which stays in registers: CG * S <= BLOCK."""
    n = (tl.program_id(0) // G).to(tl.int64)
    g = tl.program_id(0) % G
    x_ptr += n * x_n + g.to(tl.int64) * CG * x_c
    out_ptr += n * o_n + g.to(tl.int64) * CG * o_c
    end = tl.cast(CG, tl.int32) * S
    index = _tile_index(0, BLOCK, VEC, False)
    valid = index < end
    x = tl.load(x_ptr + _offset(index, S, H, W, x_c, x_t, x_h, x_w, VEC, DENSE), mask=valid, other=0.0).to(tl.float32)
    inverse = 1.0 / end.to(tl.float32)
    mean = tl.sum(x) * inverse
    d = tl.where(valid, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d) * inverse + eps)
    _apply(x, weight_ptr + g * CG, bias_ptr + g * CG, out_ptr, index, end, mean, rstd, S, H, W, o_c, o_t, o_h, o_w,
           VEC, DENSE, "", ASM)  # fmt: skip


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
    ng = pid // chunks
    n = (ng // G).to(tl.int64)
    g = (ng % G).to(tl.int64)
    size = tl.cast(CG, tl.int64) * S
    begin = (pid % chunks).to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, size)
    mean, m2 = _moments(x_ptr + n * x_n + g * CG * x_c, begin, end, S, H, W, x_c, x_t, x_h, x_w,
                        BLOCK, VEC, UNROLL, DENSE, INDEX64, "")  # fmt: skip
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
    n = (ng // G).to(tl.int64)
    g = (ng % G).to(tl.int64)
    size = tl.cast(CG, tl.int64) * S
    index = _tile_index((pid % tiles).to(tl.int64) * BLOCK, BLOCK, VEC, INDEX64)
    # x does not come from the statistics kernel, so it may be read before that has ended
    offset = _offset(index, S, H, W, x_c, x_t, x_h, x_w, VEC, DENSE)
    x = tl.load(x_ptr + n * x_n + g * CG * x_c + offset, mask=index < size, other=0.0)
    if PDL:
        gdc_wait()
    first = ng.to(tl.int64) * chunks
    mean, variance = merge_chunks(mean_ptr + first, m2_ptr + first, chunks, chunk, size, CHUNKS_PAD)
    _apply(x, weight_ptr + g * CG, bias_ptr + g * CG, out_ptr + n * o_n + g * CG * o_c, index, size, mean,
           tl.rsqrt(variance + eps), S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE, "evict_first", ASM)  # fmt: skip


@triton.jit
def groupnorm_silu_flat_waves(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, m2_ptr, arrived_ptr, eps, NG, chunks, chunk, G, CG, S, H, W,
    x_n, x_c, x_t, x_h, x_w, o_n, o_c, o_t, o_h, o_w,
    WAVE: tl.constexpr, LAG: tl.constexpr, BLOCK: tl.constexpr, VEC: tl.constexpr, UNROLL: tl.constexpr,
    APPLY_BLOCK: tl.constexpr, CHUNKS_PAD: tl.constexpr, DENSE: tl.constexpr, INDEX64: tl.constexpr,
    ASM: tl.constexpr, READ_POLICY: tl.constexpr,
):  # fmt: skip
    """WAVE groups at a time: statistics, then (LAG waves later) the apply pass, which finds x in L2.

    Needs all WAVE * chunks programs resident at once (a cooperative launch) and `arrived`, (N * G,) int32, zeroed.
    """
    pid = tl.program_id(0)
    slot = pid // chunks
    k = pid % chunks
    size = tl.cast(CG, tl.int64) * S
    begin = k.to(tl.int64) * chunk
    end = tl.minimum(begin + chunk, size)
    waves = (NG + WAVE - 1) // WAVE
    step = 0
    while step < waves + LAG:
        ng = step * WAVE + slot
        if ng < NG:
            n = (ng // G).to(tl.int64)
            g = (ng % G).to(tl.int64)
            mean, m2 = _moments(x_ptr + n * x_n + g * CG * x_c, begin, end, S, H, W, x_c, x_t, x_h, x_w,
                                BLOCK, VEC, UNROLL, DENSE, INDEX64, READ_POLICY)  # fmt: skip
            tl.store(mean_ptr + ng.to(tl.int64) * chunks + k, mean)
            tl.store(m2_ptr + ng.to(tl.int64) * chunks + k, m2)
            tl.atomic_add(arrived_ptr + ng, 1, sem="release", scope="gpu")
        ng = (step - LAG) * WAVE + slot
        if (ng >= slot) & (ng < NG):
            n = (ng // G).to(tl.int64)
            g = (ng % G).to(tl.int64)
            while tl.atomic_add(arrived_ptr + ng, 0, sem="acquire", scope="gpu") < chunks:
                pass
            first = ng.to(tl.int64) * chunks
            mean, variance = merge_chunks(mean_ptr + first, m2_ptr + first, chunks, chunk, size, CHUNKS_PAD)
            rstd = tl.rsqrt(variance + eps)
            tiles = (end - begin + APPLY_BLOCK - 1) // APPLY_BLOCK
            while tiles > 0:
                # last tile first: it is the likeliest to be in L2 still
                tiles -= 1
                index = _tile_index(begin + tiles * APPLY_BLOCK, APPLY_BLOCK, VEC, INDEX64)
                offset = _offset(index, S, H, W, x_c, x_t, x_h, x_w, VEC, DENSE)
                x = tl.load(x_ptr + n * x_n + g * CG * x_c + offset, mask=index < end, other=0.0,
                            eviction_policy="evict_first")  # fmt: skip
                _apply(x, weight_ptr + g * CG, bias_ptr + g * CG, out_ptr + n * o_n + g * CG * o_c, index, end,
                       mean, rstd, S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE, "evict_first", ASM)  # fmt: skip
        step += 1
