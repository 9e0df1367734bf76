"""Triton kernels for RMSNorm over the last dim, alone or after a residual add; fp32 inside, one rounding per output.

With ROUND_FIRST the normed row is rounded to x's dtype before the weight is applied, and once more after it.

A row of D is held as two pieces, HEAD (the largest power of two <= D) and TAIL (the rest, padded to a power of two or
0), so that D = 1536, 3072 or 5120 idles few lanes where one padded tile would idle a quarter to three eighths.

LAYOUT says how rows lie: DENSE (one behind the other, for every tensor), EVEN_STEPS (some number apart) or STRIDED
(through three strides). Strides that a layout has no use for are passed as 1, which is a constant to Triton and no
argument of the launch: of a small kernel's time arguments and the arithmetic on them are a part that one sees.
"""

import triton
import triton.language as tl

DENSE, EVEN_STEPS, STRIDED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _row_offset(row, D, N1, N2, s_0, s_1, s_2, LAYOUT: tl.constexpr):
    """Element offset of row (i0 * N1 + i1) * N2 + i2; rows are D apart when DENSE and s_2 with EVEN_STEPS."""
    if LAYOUT == DENSE:
        offset = row.to(tl.int64) * D
    elif LAYOUT == EVEN_STEPS:
        offset = row.to(tl.int64) * s_2
    else:
        i01 = row // N2
        i0 = i01 // N1
        offset = i0.to(tl.int64) * s_0 + (i01 - i0 * N1).to(tl.int64) * s_1 + (row - i01 * N2).to(tl.int64) * s_2
    return offset


@triton.jit
def _rounded(x, dtype: tl.constexpr, EMULATE: tl.constexpr):
    """fp32 rounded to `dtype` and back; with EMULATE by integers, since Triton's interpreter truncates to bf16."""
    if EMULATE and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits += 0x7FFF + ((bits >> 16) & 1)
        y = ((bits >> 16) << 16).to(tl.float32, bitcast=True)
    else:
        y = x.to(dtype).to(tl.float32)
    return y


@triton.jit
def _sum(x, residual, EMULATE: tl.constexpr):
    """x + residual rounded to x's dtype."""
    return _rounded(x.to(tl.float32) + residual.to(tl.float32), x.dtype, EMULATE).to(x.dtype)


@triton.jit
def _weighted(normed, weight, dtype: tl.constexpr, ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr):
    """weight * normed in fp32; the product of two rounded 16-bit numbers is exact there, so storing rounds it once."""
    if ROUND_FIRST:
        normed = _rounded(normed, dtype, EMULATE)
    return weight * normed


@triton.jit(do_not_specialize=["rows"])
def rmsnorm_tile(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, eps, rows, N1, N2,
    x_0, x_1, x_2, x_d, r_0, r_1, r_2, r_d, h_0, h_1, h_2, h_d,
    D: tl.constexpr, ROWS: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr, EVEN: tl.constexpr,
    LAYOUT: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr, ROUND_FIRST: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, kept in registers; out is contiguous (rows, D), h has strides of its own.

    EVEN says that ROWS divides `rows`: nothing is masked but the tail.
    """
    first = tl.program_id(0).to(rows.dtype) * ROWS
    lane = tl.arange(0, ROWS)
    row = first + lane
    x_row = _row_offset(row, D, N1, N2, x_0, x_1, x_2, LAYOUT)[:, None]
    out_row = (row.to(tl.int64) * D)[:, None]
    head = tl.arange(0, HEAD)[None, :]
    # not row < rows: within ROWS of 2^31 that would overflow
    row_valid = tl.full((ROWS, 1), True, tl.int1) if EVEN else (lane < rows - first)[:, None]
    # everything is asked for before anything is used
    head_x = tl.load(x_ptr + (x_row + head.to(tl.int64) * x_d), mask=row_valid, other=0.0)
    if RESIDUAL:
        r_row = _row_offset(row, D, N1, N2, r_0, r_1, r_2, LAYOUT)[:, None]
        h_row = _row_offset(row, D, N1, N2, h_0, h_1, h_2, LAYOUT)[:, None]
        head_r = tl.load(residual_ptr + (r_row + head.to(tl.int64) * r_d), mask=row_valid, other=0.0)
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)[None, :]
        in_row = tail < D
        tail_valid = row_valid & in_row
        tail_x = tl.load(x_ptr + (x_row + tail.to(tl.int64) * x_d), mask=tail_valid, other=0.0)
        if RESIDUAL:
            tail_r = tl.load(residual_ptr + (r_row + tail.to(tl.int64) * r_d), mask=tail_valid, other=0.0)
    # the weight as a tile of x's shape: one row of it would reach the threads that need it through shared memory
    if WEIGHT:
        repeat = tl.zeros((ROWS, 1), tl.int32)
        head_weight = tl.load(weight_ptr + head + repeat, eviction_policy="evict_last")
        if TAIL > 0:
            tail_weight = tl.load(weight_ptr + tail + repeat, mask=in_row, other=0.0, eviction_policy="evict_last")
    if RESIDUAL:
        head_x = _sum(head_x, head_r, EMULATE)
        tl.store(h_ptr + (h_row + head.to(tl.int64) * h_d), head_x, mask=row_valid)
        if TAIL > 0:
            tail_x = _sum(tail_x, tail_r, EMULATE)
            tl.store(h_ptr + (h_row + tail.to(tl.int64) * h_d), tail_x, mask=tail_valid)
    head_wide = head_x.to(tl.float32)
    squares = head_wide * head_wide
    if TAIL > 0:
        tail_wide = tail_x.to(tl.float32)
        # fold onto the tail's columns first: one reduction over threads instead of two
        squares = tl.sum(tl.reshape(squares, (ROWS, HEAD // TAIL, TAIL)), 1) + tail_wide * tail_wide
    inverse_rms = tl.rsqrt(tl.sum(squares, 1) * (1.0 / D) + eps)[:, None]
    y = head_wide * inverse_rms
    if WEIGHT:
        y = _weighted(y, head_weight.to(tl.float32), x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
    tl.store(out_ptr + (out_row + head), y.to(out_ptr.dtype.element_ty), mask=row_valid)
    if TAIL > 0:
        y = tail_wide * inverse_rms
        if WEIGHT:
            y = _weighted(y, tail_weight.to(tl.float32), x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
        tl.store(out_ptr + (out_row + tail), y.to(out_ptr.dtype.element_ty), mask=tail_valid)


@triton.jit
def rmsnorm_long(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, eps, D, N1, N2,
    x_0, x_1, x_2, x_d, r_0, r_1, r_2, r_d, h_0, h_1, h_2, h_d,
    BLOCK: tl.constexpr, LAYOUT: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr,
    ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """One row per program in two passes over blocks, for rows too long for registers."""
    row = tl.program_id(0).to(tl.int64)
    x_row = _row_offset(row, D, N1, N2, x_0, x_1, x_2, LAYOUT)
    r_row = _row_offset(row, D, N1, N2, r_0, r_1, r_2, LAYOUT)
    h_row = _row_offset(row, D, N1, N2, h_0, h_1, h_2, LAYOUT)
    column = tl.arange(0, BLOCK).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    start = 0
    while start < D:
        i = start + column
        x = tl.load(x_ptr + x_row + i * x_d, mask=i < D, other=0.0, eviction_policy="evict_last")
        if RESIDUAL:
            r = tl.load(residual_ptr + r_row + i * r_d, mask=i < D, other=0.0, eviction_policy="evict_last")
            x = _sum(x, r, EMULATE)
        x = x.to(tl.float32)
        squares += x * x
        start += BLOCK
    inverse_rms = tl.rsqrt(tl.sum(squares) / D + eps)
    # last block first: it is the likeliest to be in cache still
    while start > 0:
        start -= BLOCK
        i = start + column
        x = tl.load(x_ptr + x_row + i * x_d, mask=i < D, other=0.0, eviction_policy="evict_first")
        if RESIDUAL:
            r = tl.load(residual_ptr + r_row + i * r_d, mask=i < D, other=0.0, eviction_policy="evict_first")
            x = _sum(x, r, EMULATE)
            tl.store(h_ptr + h_row + i * h_d, x, mask=i < D)
        y = x.to(tl.float32) * inverse_rms
        if WEIGHT:
            weight = tl.load(weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
            y = _weighted(y, weight, x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
        tl.store(out_ptr + row * D + i, y.to(out_ptr.dtype.element_ty), mask=i < D)
