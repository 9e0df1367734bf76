"""LayerNorm in the very roundings of torch's CUDA kernel, plain, affine or modulated, alone or after a residual add.

torch's `vectorized_layer_norm_kernel` (aten/src/ATen/native/cuda/layer_norm_kernel.cu) gives a row to 128 threads.
Thread t takes the 4-element vectors t, t + 128, ... in turn and folds their elements one by one into a running mean and
sum of squared deviations (Welford 1962). The 128 states are then merged (Chan et al. 1979) at distances 16, 8, 4, 2, 1
within each of the four warps, and at 2, 1 between warps. nvcc contracts each product and sum of that code into a fused
multiply-add. The reciprocals are correctly rounded.

Here a row has two warps, whose threads hold two of those 128 states each (eight neighbouring elements, 16 bytes of
bf16), or four as in torch: the tree is the same, the threads are not.

Neighbouring lanes hold neighbouring vectors. Triton gives a tensor's first dim to them, once the contiguous last one is
in the thread; so vectors come first and torch's warps second. The other way round neighbouring lanes are 256 bytes of
bf16 apart, or 512 of fp32; a kernel of that kind took up to three times as long.

* Where D is a multiple of 512 all states have seen equally many elements. Every count, and every reciprocal of one, is
  then a constant, and merging is symmetric to the last bit: weights are n * (1 / 2n), exactly a half for all D <= 8192.
* Otherwise some states are one vector behind. Merging then takes the real counts, and the lane numbers along, for it
  is not symmetric: the lower lane must be `self`.

The launch forbids contraction of anything not written as `tl.fma` here. Each level of the tree is a reduction over a
dim of two, so nothing depends on the order in which Triton reduces longer ones.
"""

import triton
import triton.language as tl

from candidates.layernorm.kernels.tile import row_offset


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


@triton.jit(do_not_specialize=["S", "GATE_TOKENS", "MUL_TOKENS", "ADD_TOKENS"])
def layernorm_exact(
    x_ptr, residual_ptr, gate_ptr, mul_ptr, add_ptr, out_ptr, h_ptr, eps, S,
    x_b, x_s, x_d, r_b, r_s, r_d, g_b, g_g, GATE_TOKENS, m_b, m_g, MUL_TOKENS, a_b, a_g, ADD_TOKENS,
    D: tl.constexpr, WARPS: tl.constexpr, MODE: tl.constexpr, ROUND: tl.constexpr, RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """One row per program of WARPS (2 or 4) warps; out and h are contiguous.

    MODE: "plain", "affine" (fused multiply-add, as torch's kernel does) or "modulate". ROUND: every step of the
    residual add and of the modulation is rounded to x's dtype, as eager operators on such tensors do; else to fp32.
    EVEN: in every tensor the distance of a row to the next is one number (0 where all rows share one): x_s, r_s, g_g,
    m_g, a_g; x_d and r_d are 1.
    """
    CHUNKS: tl.constexpr = (D + 511) // 512
    EQUAL: tl.constexpr = D % 512 == 0
    # elements of a thread in each chunk, and of torch's threads that it stands for
    WIDTH: tl.constexpr = 16 // WARPS
    STATES: tl.constexpr = 4 // WARPS
    row = tl.program_id(0)
    x_ptr += row_offset(row, S, x_b, x_s, 1, EVEN)
    residual_ptr += row_offset(row, S, r_b, r_s, 1, EVEN)
    gate_ptr += row_offset(row, S, g_b, g_g, GATE_TOKENS, EVEN)
    out_ptr += row.to(tl.int64) * D
    h_ptr += row.to(tl.int64) * D
    # torch's thread of an element is its column / 4 (modulo 128): its lane's high bits, its warp, its lane's lowest bit
    VECTORS: tl.constexpr = 128 // WIDTH
    vector = tl.arange(0, VECTORS)[:, None, None]
    warp = tl.arange(0, 4)[None, :, None]
    start = warp * 128 + vector * WIDTH
    column = start + tl.arange(0, WIDTH)[None, None, :]
    xs = ()
    rs = ()
    for i in tl.static_range(CHUNKS):
        c = i * 512 + column
        mask = None if (i + 1) * 512 <= D else c < D
        # 64 bits: a column's stride times D may be large
        x_c = c if EVEN else c.to(tl.int64) * x_d
        xs = xs + (tl.load(x_ptr + x_c, mask=mask),)  # noqa: RUF005 (Triton knows no unpacking)
        if RESIDUAL:
            r_c = c if EVEN else c.to(tl.int64) * r_d
            rs = rs + (tl.load(residual_ptr + r_c, mask=mask),)  # noqa: RUF005
    if RESIDUAL:
        hs = ()
        for i in tl.static_range(CHUNKS):
            c = i * 512 + column
            mask = None if (i + 1) * 512 <= D else c < D
            gate = tl.load(gate_ptr + c, mask=mask, eviction_policy=POLICY)
            update = xs[i].to(tl.float32) * gate.to(tl.float32)
            if ROUND:
                update = update.to(xs[i].dtype).to(tl.float32)
            h = (rs[i].to(tl.float32) + update).to(xs[i].dtype)
            tl.store(h_ptr + c, h, mask=mask)
            hs = hs + (h,)  # noqa: RUF005
        xs = hs
    mean = tl.zeros((VECTORS, 4, STATES), tl.float32)
    m2 = tl.zeros((VECTORS, 4, STATES), tl.float32)
    n = tl.full((VECTORS, 4, STATES), 4.0 * (D // 512), tl.float32)
    last = CHUNKS * 512 - 512 + start + tl.arange(0, STATES)[None, None, :] * 4 < D
    if not EQUAL:
        n += tl.where(last, 4.0, 0.0)
    for i in tl.static_range(CHUNKS):
        even, odd = tl.split(tl.reshape(xs[i].to(tl.float32), (VECTORS, 4, STATES, 2, 2)))
        x_0, x_2 = tl.split(even)
        x_1, x_3 = tl.split(odd)
        mean, m2 = _push(x_0, mean, m2, last, 1.0 / (4 * i + 1), (i + 1) * 512 > D)
        mean, m2 = _push(x_1, mean, m2, last, 1.0 / (4 * i + 2), (i + 1) * 512 > D)
        mean, m2 = _push(x_2, mean, m2, last, 1.0 / (4 * i + 3), (i + 1) * 512 > D)
        mean, m2 = _push(x_3, mean, m2, last, 1.0 / (4 * i + 4), (i + 1) * 512 > D)
    # torch's lanes at distance 16, 8, 4, 2 and 1, then its warps at 2 and 1
    if WARPS == 2:
        mean, m2, n = _merge_dim(mean, m2, n, 1, 4, 8, EQUAL)
        mean, m2, n = _merge_dim(mean, m2, n, 4, 1, 1, EQUAL)
    else:
        mean, m2, n = _merge_dim(mean, m2, n, 1, 5, 4, EQUAL)
    mean, m2, n = _merge_dim(mean, m2, n, 1, 2, 1, EQUAL)
    mean, m2 = tl.reshape(mean, (1,)), tl.reshape(m2, (1,))
    inverse_sd = tl.rsqrt(tl.div_rn(m2, D * 1.0) + eps)[:, None, None]
    mean = mean[:, None, None]
    # not before the statistics: two registers too many there, at batches of rows of 3072
    mul_ptr += row_offset(row, S, m_b, m_g, MUL_TOKENS, EVEN)
    add_ptr += row_offset(row, S, a_b, a_g, ADD_TOKENS, EVEN)
    for i in tl.static_range(CHUNKS):
        c = i * 512 + column
        mask = None if (i + 1) * 512 <= D else c < D
        y = inverse_sd * (xs[i].to(tl.float32) - mean)
        if MODE != "plain":
            mul = tl.load(mul_ptr + c, mask=mask, eviction_policy=POLICY).to(tl.float32)
            add = tl.load(add_ptr + c, mask=mask, eviction_policy=POLICY).to(tl.float32)
            if MODE == "affine":
                y = tl.fma(mul, y, add)
            elif ROUND:
                mul = (1.0 + mul).to(out_ptr.dtype.element_ty).to(tl.float32)
                y = y.to(out_ptr.dtype.element_ty).to(tl.float32) * mul
                y = y.to(out_ptr.dtype.element_ty).to(tl.float32) + add
            else:
                y = y * (1.0 + mul) + add
        tl.store(out_ptr + c, y.to(out_ptr.dtype.element_ty), mask=mask)
