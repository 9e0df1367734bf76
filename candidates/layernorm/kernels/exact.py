"""LayerNorm in the very roundings of torch's CUDA kernel, plain, affine or modulated, alone or after a residual add.

torch's `vectorized_layer_norm_kernel` (aten/src/ATen/native/cuda/layer_norm_kernel.cu) gives a row to 128 threads.
Thread t takes the 4-element vectors t, t + 128, ... in turn and folds their elements one by one into a running mean and
sum of squared deviations (Welford 1962). The 128 states are then merged (Chan et al. 1979) at distances 16, 8, 4, 2, 1
within each of the four warps, and at 2, 1 between warps. nvcc contracts each product and sum of that code into a fused
multiply-add. The reciprocals are correctly rounded.

Here a row has one warp (or two), which holds those 128 states: the tree is the same, the threads are not.

* Where D is a multiple of 512 all states have seen equally many elements. Every count, and every reciprocal of one, is
  then a constant, and merging is symmetric to the last bit: weights are n * (1 / 2n), exactly a half for all D <= 8192.
* Otherwise some states are one vector behind. Merging then takes the real counts, and the lane numbers along, for it
  is not symmetric: the lower lane must be `self`.

The launch forbids contraction of anything not written as `tl.fma` here. Each level of the tree is a reduction over a
dim of two, so nothing depends on the order in which Triton reduces longer ones.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from candidates.layernorm.kernels.tile import group_offset


@triton.jit
def _push(value, mean, m2, valid, RECIPROCAL: tl.constexpr, MASKED: tl.constexpr):
    """Welford's step; RECIPROCAL is 1 / (elements seen with this one)."""
    delta = value - mean
    new_mean = tl.fma(delta, tl.full((), RECIPROCAL, tl.float32), mean)
    new_m2 = tl.fma(delta, value - new_mean, m2)
    if MASKED:
        new_mean = tl.where(valid, new_mean, mean)
        new_m2 = tl.where(valid, new_m2, m2)
    return new_mean, new_m2


@triton.jit
def _merge_equal(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Two states of n elements each."""
    delta = mean_a - mean_b
    mean = tl.fma(mean_b, 0.5, mean_a * 0.5)
    m2 = tl.fma(delta * delta * n_a, 0.5, m2_a + m2_b)
    return mean, m2, n_a + n_b


@triton.jit
def _merge_ordered(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Two states of any n > 0; `a` is the lower lane's."""
    delta = mean_a - mean_b
    count = n_a + n_b
    reciprocal = tl.div_rn(1.0, count)
    share_a = n_a * reciprocal
    mean = tl.fma(mean_b, n_b * reciprocal, share_a * mean_a)
    m2 = tl.fma(delta * delta * n_b, share_a, m2_a + m2_b)
    return mean, m2, count


@triton.jit
def _merge_lanes(mean_a, m2_a, n_a, lane_a, mean_b, m2_b, n_b, lane_b):
    """`_merge_ordered`, whichever of the two comes first."""
    lower = lane_a < lane_b
    mean, m2, count = _merge_ordered(
        tl.where(lower, mean_a, mean_b), tl.where(lower, m2_a, m2_b), tl.where(lower, n_a, n_b),
        tl.where(lower, mean_b, mean_a), tl.where(lower, m2_b, m2_a), tl.where(lower, n_b, n_a),
    )  # fmt: skip
    return mean, m2, count, tl.minimum(lane_a, lane_b)


@triton.jit
def _merge_dim(mean, m2, n, BEFORE: tl.constexpr, LEVELS: tl.constexpr, AFTER: tl.constexpr, EQUAL: tl.constexpr):
    """Of states (BEFORE, 2^LEVELS, AFTER) the middle dim, partners at the largest distance first."""
    for level in tl.static_range(LEVELS):
        mean = tl.reshape(mean, (BEFORE, 2, 1 << (LEVELS - 1 - level), AFTER))
        m2 = tl.reshape(m2, (BEFORE, 2, 1 << (LEVELS - 1 - level), AFTER))
        n = tl.reshape(n, (BEFORE, 2, 1 << (LEVELS - 1 - level), AFTER))
        if EQUAL:
            mean, m2, n = tl.reduce((mean, m2, n), 1, _merge_equal)
        else:
            lane = tl.broadcast_to(tl.arange(0, 2)[None, :, None, None], mean.shape)
            mean, m2, n, _ = tl.reduce((mean, m2, n, lane), 1, _merge_lanes)
    return mean, m2, n


@triton.jit
def layernorm_exact(
    x_ptr, residual_ptr, gate_ptr, mul_ptr, add_ptr, out_ptr, h_ptr, eps, S,
    x_b, x_s, x_d, r_b, r_s, r_d, g_b, g_g, GATE_TOKENS, m_b, m_g, MUL_TOKENS, a_b, a_g, ADD_TOKENS,
    D: tl.constexpr, TWO_WARPS: tl.constexpr, MODE: tl.constexpr, ROUND: tl.constexpr, RESIDUAL: tl.constexpr,
    POLICY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row per program; out and h are contiguous.

    MODE: "plain", "affine" (fused multiply-add, as torch's kernel does) or "modulate". ROUND: every step of the
    residual add and of the modulation is rounded to x's dtype, as eager operators on such tensors do; else to fp32.
    """
    if PDL:
        gdc_wait()
    CHUNKS: tl.constexpr = (D + 511) // 512
    EQUAL: tl.constexpr = D % 512 == 0
    row = tl.program_id(0)
    b = row // S
    s = row - b * S
    x_ptr += group_offset(b, s, x_b, x_s, 1)
    residual_ptr += group_offset(b, s, r_b, r_s, 1)
    gate_ptr += group_offset(b, s, g_b, g_g, GATE_TOKENS)
    mul_ptr += group_offset(b, s, m_b, m_g, MUL_TOKENS)
    add_ptr += group_offset(b, s, a_b, a_g, ADD_TOKENS)
    out_ptr += row.to(tl.int64) * D
    h_ptr += row.to(tl.int64) * D
    # torch's thread of an element is its column / 4 (modulo 128): bits (warp, warp, 4 of the lane, lane's lowest).
    # Eight neighbouring elements, two of torch's threads, lie in one thread here: 16-byte accesses.
    INNER: tl.constexpr = 2 if TWO_WARPS else 4
    VECTORS: tl.constexpr = 16 if TWO_WARPS else 8
    # One warp: the lane's highest bit is in registers, so that the widest merge needs no exchange.
    outer = tl.arange(0, 2)[:, None, None, None] * (256 if TWO_WARPS else 64)
    inner = tl.arange(0, INNER)[None, :, None, None] * 128
    vector = tl.arange(0, VECTORS)[None, None, :, None]
    start = outer + inner + vector * 8
    column = start + tl.arange(0, 8)[None, None, None, :]
    rows = ()
    for i in tl.static_range(CHUNKS):
        c = i * 512 + column
        valid = c < D
        x = tl.load(x_ptr + c * x_d, mask=valid, other=0.0, eviction_policy="evict_first")
        if RESIDUAL:
            r = tl.load(residual_ptr + c * r_d, mask=valid, other=0.0, eviction_policy="evict_first")
            gate = tl.load(gate_ptr + c, mask=valid, other=0.0)
            update = x.to(tl.float32) * gate.to(tl.float32)
            if ROUND:
                update = update.to(x.dtype).to(tl.float32)
            x = (r.to(tl.float32) + update).to(x.dtype)
            tl.store(h_ptr + c, x, mask=valid)
        rows = rows + (x,)  # noqa: RUF005 (Triton knows no unpacking)
    mean = tl.zeros((2, INNER, VECTORS, 2), tl.float32)
    m2 = tl.zeros((2, INNER, VECTORS, 2), tl.float32)
    n = tl.full((2, INNER, VECTORS, 2), 4.0 * (D // 512), tl.float32)
    last = CHUNKS * 512 - 512 + start + tl.arange(0, 2)[None, None, None, :] * 4 < D
    if not EQUAL:
        n += tl.where(last, 4.0, 0.0)
    for i in tl.static_range(CHUNKS):
        even, odd = tl.split(tl.reshape(rows[i].to(tl.float32), (2, INNER, VECTORS, 2, 2, 2)))
        x_0, x_2 = tl.split(even)
        x_1, x_3 = tl.split(odd)
        mean, m2 = _push(x_0, mean, m2, last, 1.0 / (4 * i + 1), (i + 1) * 512 > D)
        mean, m2 = _push(x_1, mean, m2, last, 1.0 / (4 * i + 2), (i + 1) * 512 > D)
        mean, m2 = _push(x_2, mean, m2, last, 1.0 / (4 * i + 3), (i + 1) * 512 > D)
        mean, m2 = _push(x_3, mean, m2, last, 1.0 / (4 * i + 4), (i + 1) * 512 > D)
    if PDL:
        gdc_launch_dependents()
    # torch's lanes at distance 16, 8, 4, 2 and 1, then its warps at 2 and 1
    if TWO_WARPS:
        mean, m2, n = _merge_dim(mean, m2, n, 4, 4, 2, EQUAL)
    else:
        mean, m2, n = _merge_dim(mean, m2, n, 1, 1, 64, EQUAL)
        mean, m2, n = _merge_dim(mean, m2, n, 4, 3, 2, EQUAL)
    mean, m2, n = _merge_dim(mean, m2, n, 4, 1, 1, EQUAL)
    mean, m2, n = _merge_dim(mean, m2, n, 1, 2, 1, EQUAL)
    mean, m2 = tl.reshape(mean, (1,)), tl.reshape(m2, (1,))
    inverse_sd = tl.rsqrt(tl.div_rn(m2, D * 1.0) + eps)[:, None, None, None]
    mean = mean[:, None, None, None]
    for i in tl.static_range(CHUNKS):
        c = i * 512 + column
        valid = c < D
        y = inverse_sd * (rows[i].to(tl.float32) - mean)
        if MODE != "plain":
            mul = tl.load(mul_ptr + c, mask=valid, other=0.0, eviction_policy=POLICY).to(tl.float32)
            add = tl.load(add_ptr + c, mask=valid, other=0.0, eviction_policy=POLICY).to(tl.float32)
            if MODE == "affine":
                y = tl.fma(mul, y, add)
            elif ROUND:
                y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * (1.0 + mul).to(out_ptr.dtype.element_ty).to(
                    tl.float32
                )
                y = y.to(out_ptr.dtype.element_ty).to(tl.float32) + add
            else:
                y = y * (1.0 + mul) + add
        tl.store(out_ptr + c, y.to(out_ptr.dtype.element_ty), mask=valid)
