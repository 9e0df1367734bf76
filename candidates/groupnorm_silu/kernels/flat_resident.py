"""GroupNorm+SiLU in logical order in one launch that reads x once, chunks of a group kept in registers.

Where a group has several chunks their programs wait for each other between the statistics and the pointwise part.
Tiles are those of the flat kernels.
"""

import triton
import triton.language as tl

from candidates.groupnorm_silu.kernels.barrier import held, read_word, wait_for_all
from candidates.groupnorm_silu.kernels.flat import _group_base, _offset, _tile_index
from candidates.groupnorm_silu.kernels.tiles import merge_around, merge_lanes, normalise_silu_paired


@triton.jit
def groupnorm_silu_flat_resident(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, m2_ptr, words_ptr, eps, chunks, chunk, G, CG, S, H, W,
    x_n, x_c, x_t, x_h, x_w, o_n, o_c, o_t, o_h, o_w,
    BLOCK: tl.constexpr, VEC: tl.constexpr, TILES: tl.constexpr, CHUNKS_PAD: tl.constexpr, DENSE: tl.constexpr,
    BARRIER: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """`chunk` elements (at most TILES * BLOCK) of one group; grid (N * G * chunks,); partials are (N * G, chunks).

    BARRIER: there are several chunks, and words_ptr holds a word for each group of each image.
    """
    pid = tl.program_id(0)
    ng = pid // chunks
    k = pid % chunks
    g = ng % G
    x_ptr += _group_base(ng, G, CG, x_n, x_c, VEC, DENSE)
    out_ptr += _group_base(ng, G, CG, o_n, o_c, VEC, DENSE)
    weight_ptr += g * CG
    bias_ptr += g * CG
    words_ptr += ng
    size = tl.cast(CG, tl.int32) * S
    begin = k * chunk
    end = tl.minimum(begin + chunk, size)
    if BARRIER:
        before = read_word(words_ptr)

    index = _tile_index(begin, BLOCK, VEC, False)
    xs = ()
    for i in tl.static_range(TILES):
        offset = _offset(index + i * BLOCK, S, H, W, x_c, x_t, x_h, x_w, VEC, DENSE)
        xs += (tl.load(x_ptr + offset, mask=index + i * BLOCK < end, other=0.0),)

    first = xs[0].to(tl.float32)
    s1 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    s2 = tl.zeros((BLOCK // VEC, VEC), tl.float32)
    for i in tl.static_range(1, TILES):
        d = tl.where(index + i * BLOCK < end, xs[i].to(tl.float32) - first, 0.0)
        s1 += d
        s2 += d * d
    tiles = tl.maximum((end - index + BLOCK - 1) // BLOCK, 0).to(tl.float32)
    lane_mean, lane_m2 = merge_lanes(first, s1, s2, tiles)
    mean = tl.sum(lane_mean * tiles) / tl.maximum((end - begin).to(tl.float32), 1.0)
    delta = lane_mean - mean
    m2 = tl.sum(lane_m2 + tiles * delta * delta)

    weight = tl.load(weight_ptr + index // S, mask=index < end, other=0.0)
    bias = tl.load(bias_ptr + index // S, mask=index < end, other=0.0)
    total = size.to(tl.float32)
    if BARRIER:
        tl.store(mean_ptr + pid, mean)
        tl.store(m2_ptr + pid, m2)
        if ASM:
            wait_for_all(words_ptr, before, chunks, k == 0)
        ks = tl.arange(0, CHUNKS_PAD)
        slot = ng * chunks
        # .cg: other SMs wrote them, so L1 must not answer
        reference = tl.load(mean_ptr + slot, cache_modifier=".cg")
        mean_k = tl.load(mean_ptr + slot + ks, mask=ks < chunks, other=0.0, cache_modifier=".cg")
        m2_k = tl.load(m2_ptr + slot + ks, mask=ks < chunks, other=0.0, cache_modifier=".cg")
        count_k = tl.where(ks < chunks, tl.minimum(size - ks * chunk, chunk), 0).to(tl.float32)
        shift, variance = merge_around(mean_k - reference, m2_k, count_k, total)
        mean = reference + shift
    else:
        variance = m2 / total
    rstd = tl.rsqrt(variance + eps)

    zero = (end < 0).to(tl.int32)
    for i in tl.static_range(TILES):
        valid = index < end
        scale, shift = weight.to(tl.float32) * rstd, bias.to(tl.float32)
        following = index + BLOCK
        if i + 1 < TILES:
            # one tile ahead, since no load may pass a store
            weight = tl.load(weight_ptr + following // S, mask=following < end, other=0.0)
            bias = tl.load(bias_ptr + following // S, mask=following < end, other=0.0)
        y = normalise_silu_paired(held(xs[i], zero, ASM).to(tl.float32), mean, scale, shift, ASM)
        offset = _offset(index, S, H, W, o_c, o_t, o_h, o_w, VEC, DENSE)
        tl.store(out_ptr + offset, y.to(out_ptr.dtype.element_ty), mask=valid)
        index = following
