"""Triton building blocks shared by the GroupNorm+SiLU kernels: statistics that merge, and the pointwise part.

Variance is never a difference of large sums: every lane accumulates around its own first value, and lanes, chunks and
groups merge by Chan, Golub, LeVeque 1979 (M2 = sum M2_i + sum n_i (mean_i - mean)^2).
"""

import triton
import triton.language as tl


@triton.jit
def merge_lanes(first, s1, s2, count):
    """Mean and M2 of each lane from sums around its first value; count = elements the lane saw (0 allowed)."""
    inverse = 1.0 / tl.maximum(count, 1.0)
    return first + s1 * inverse, tl.maximum(s2 - s1 * s1 * inverse, 0.0)


@triton.jit
def merge_chunks(mean_ptr, m2_ptr, step, chunks, chunk, chunk_elements, total, eps, CHUNKS_PAD: tl.constexpr):
    """Mean and 1 / sqrt(variance + eps) of a group from its chunks' partials, `step` apart, in fixed order.

    Chunk k covers `chunk` positions (the last one fewer) of the group's `total`, each of `chunk_elements` elements.
    """
    k = tl.arange(0, CHUNKS_PAD)
    valid = k < chunks
    # .cg: other SMs wrote them, so L1 must not answer
    mean_k = tl.load(mean_ptr + k * step, mask=valid, other=0.0, cache_modifier=".cg")
    m2_k = tl.load(m2_ptr + k * step, mask=valid, other=0.0, cache_modifier=".cg")
    positions = tl.where(valid, tl.minimum(total - k.to(tl.int64) * chunk, chunk), 0)
    count_k = positions.to(tl.float32) * chunk_elements
    inverse = 1.0 / (tl.cast(total, tl.float32) * chunk_elements)
    mean = tl.sum(mean_k * count_k) * inverse
    # the sum above rounds at the size of the mean, this one at the size of the deviation: it matters when mean >> std
    mean += tl.sum(count_k * (mean_k - mean)) * inverse
    delta = mean_k - mean
    variance = tl.sum(m2_k + count_k * delta * delta) * inverse
    return mean, tl.rsqrt(variance + eps)


@triton.jit
def _add_pairs(a1, a2, b1, b2):
    return a1 + b1, a2 + b2


@triton.jit
def merge_around(d_k, m2_k, count_k, total):
    """The whole's mean less a reference, and its variance, from chunks' means less the reference, M2s, counts (axis 0).

    One pass. With one of the chunks' means as reference the sum of squares is at most 1 + chunks times the M2 it gives.
    """
    s1, s2 = tl.reduce((count_k * d_k, m2_k + count_k * d_k * d_k), 0, _add_pairs)
    inverse = 1.0 / total
    shift = s1 * inverse
    return shift, tl.maximum(s2 * inverse - shift * shift, 0.0)


@triton.jit
def normalise_silu(x, mean, scale, bias, ASM: tl.constexpr):
    """SiLU((x - mean) * scale + bias) in fp32, scale = weight / sqrt(variance + eps).

    ASM picks the single-instruction exponential and reciprocal (2 ULP, denormals to zero): Triton's own exp and
    division guard denormals with six more instructions, a third of this function.
    """
    y = (x - mean) * scale + bias
    if ASM:
        e = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [y * -1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )
        sigmoid = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1.0 + e], dtype=tl.float32, is_pure=True, pack=1
        )
        y = y * sigmoid
    else:
        y = y / (1.0 + tl.exp(-y))
    return y


@triton.jit
def normalise_silu_paired(x, mean, scale, bias, ASM: tl.constexpr):
    """`normalise_silu` with one reciprocal for two elements, 1/a = b/(a b), for kernels that only write meanwhile.

    An SM has 16 lanes for exponential and reciprocal: two an element take longer than writing it does. The exponent's
    limit keeps a b finite and errs by less than 1e-16, at y < -41.
    """
    if ASM:
        y = (x - mean) * scale + bias
        sigmoid = tl.inline_asm_elementwise(
            """
            {
            .reg .f32 a, b, r;
            ex2.approx.ftz.f32 a, $2;
            ex2.approx.ftz.f32 b, $3;
            add.f32 a, a, 0f3F800000;
            add.f32 b, b, 0f3F800000;
            mul.f32 r, a, b;
            rcp.approx.ftz.f32 r, r;
            mul.f32 $0, r, b;
            mul.f32 $1, r, a;
            }
            """,
            "=f,=f,f,f",
            [tl.minimum(y * -1.4426950408889634, 60.0)],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
        y = y * sigmoid
    else:
        y = normalise_silu(x, mean, scale, bias, ASM)
    return y
