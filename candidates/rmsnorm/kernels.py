"""Triton kernels for RMSNorm over the last dim, alone or after a residual add; fp32 inside, one rounding per output.

With ROUND_FIRST the normed row is rounded to x's dtype before the weight is applied, and once more after it.

A row of D is held as two pieces, HEAD (the largest power of two <= D) and TAIL (the rest, padded to a power of two or
0), so that D = 1536, 3072 or 5120 idles few lanes where one padded tile would idle a quarter to three eighths.

PDL (programmatic dependent launch, Hopper on): the kernels may be started before their predecessor has ended and wait
for it before they touch memory, so only the launch overlaps; in turn they let their successor be started.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _row_offset(row, N1, N2, s_0, s_1, s_2, COLLAPSED: tl.constexpr):
    """Element offset of row (i0 * N1 + i1) * N2 + i2; rows are s_2 apart when COLLAPSED."""
    if COLLAPSED:
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
def _stored_sum(x, residual, h_ptr, mask, EMULATE: tl.constexpr):
    """x + residual rounded to x's dtype, written to h."""
    h = _rounded(x.to(tl.float32) + residual.to(tl.float32), x.dtype, EMULATE).to(x.dtype)
    tl.store(h_ptr, h, mask=mask)
    return h


@triton.jit
def _weighted(normed, weight, dtype: tl.constexpr, ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr):
    """weight * normed in fp32; the product of two rounded 16-bit numbers is exact there, so storing rounds it once."""
    if ROUND_FIRST:
        normed = _rounded(normed, dtype, EMULATE)
    return weight * normed


@triton.jit(do_not_specialize=["rows"])
def rmsnorm_tile(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, eps, inverse_D, rows, D, N1, N2,
    x_0, x_1, x_2, x_d, r_0, r_1, r_2, r_d, h_0, h_1, h_2, h_d,
    ROWS: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr, COLLAPSED: tl.constexpr, RESIDUAL: tl.constexpr,
    WEIGHT: tl.constexpr, ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr, PDL: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """ROWS rows per program, kept in registers; out is contiguous (rows, D), h has strides of its own."""
    if PDL:
        if EARLY:
            gdc_launch_dependents()
        gdc_wait()
    first = tl.program_id(0).to(rows.dtype) * ROWS
    lane = tl.arange(0, ROWS)
    row = first + lane
    x_row = _row_offset(row, N1, N2, x_0, x_1, x_2, COLLAPSED)[:, None]
    r_row = _row_offset(row, N1, N2, r_0, r_1, r_2, COLLAPSED)[:, None]
    h_row = _row_offset(row, N1, N2, h_0, h_1, h_2, COLLAPSED)[:, None]
    out_row = (row.to(tl.int64) * D)[:, None]
    head = tl.arange(0, HEAD)[None, :]
    # not row < rows: within ROWS of 2^31 that would overflow
    row_valid = (lane < rows - first)[:, None]
    # everything is asked for before anything is used
    head_x = tl.load(x_ptr + x_row + head * x_d, mask=row_valid, other=0.0)
    if RESIDUAL:
        head_r = tl.load(residual_ptr + r_row + head * r_d, mask=row_valid, other=0.0)
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)[None, :]
        in_row = tail < D
        tail_valid = row_valid & in_row
        tail_x = tl.load(x_ptr + x_row + tail * x_d, mask=tail_valid, other=0.0)
        if RESIDUAL:
            tail_r = tl.load(residual_ptr + r_row + tail * r_d, mask=tail_valid, other=0.0)
    # the weight as a tile of x's shape: one row of it would reach the threads that need it through shared memory
    if WEIGHT:
        repeat = tl.zeros((ROWS, 1), tl.int32)
        head_weight = tl.load(weight_ptr + head + repeat, eviction_policy="evict_last").to(tl.float32)
        if TAIL > 0:
            tail_weight = tl.load(weight_ptr + tail + repeat, mask=in_row, other=0.0, eviction_policy="evict_last").to(
                tl.float32
            )
    if RESIDUAL:
        head_x = _stored_sum(head_x, head_r, h_ptr + h_row + head * h_d, row_valid, EMULATE)
        if TAIL > 0:
            tail_x = _stored_sum(tail_x, tail_r, h_ptr + h_row + tail * h_d, tail_valid, EMULATE)
    head_x = head_x.to(tl.float32)
    squares = head_x * head_x
    if TAIL > 0:
        tail_x = tail_x.to(tl.float32)
        # fold onto the tail's columns first: one reduction over threads instead of two
        squares = tl.sum(tl.reshape(squares, (ROWS, HEAD // TAIL, TAIL)), 1) + tail_x * tail_x
    if PDL and not EARLY:
        gdc_launch_dependents()
    inverse_rms = tl.rsqrt(tl.sum(squares, 1) * inverse_D + eps)[:, None]
    y = head_x * inverse_rms
    if WEIGHT:
        y = _weighted(y, head_weight, x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
    tl.store(out_ptr + out_row + head, y.to(out_ptr.dtype.element_ty), mask=row_valid)
    if TAIL > 0:
        y = tail_x * inverse_rms
        if WEIGHT:
            y = _weighted(y, tail_weight, x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
        tl.store(out_ptr + out_row + tail, y.to(out_ptr.dtype.element_ty), mask=tail_valid)


@triton.jit
def rmsnorm_long(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, eps, D, N1, N2,
    x_0, x_1, x_2, x_d, r_0, r_1, r_2, r_d, h_0, h_1, h_2, h_d,
    BLOCK: tl.constexpr, COLLAPSED: tl.constexpr, RESIDUAL: tl.constexpr, WEIGHT: tl.constexpr,
    ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row per program in two passes over blocks, for rows too long for registers."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    x_row = _row_offset(row, N1, N2, x_0, x_1, x_2, COLLAPSED)
    r_row = _row_offset(row, N1, N2, r_0, r_1, r_2, COLLAPSED)
    h_row = _row_offset(row, N1, N2, h_0, h_1, h_2, COLLAPSED)
    column = tl.arange(0, BLOCK).to(tl.int64)
    squares = tl.zeros((BLOCK,), tl.float32)
    start = 0
    while start < D:
        i = start + column
        x = tl.load(x_ptr + x_row + i * x_d, mask=i < D, other=0.0, eviction_policy="evict_last")
        if RESIDUAL:
            r = tl.load(residual_ptr + r_row + i * r_d, mask=i < D, other=0.0, eviction_policy="evict_last")
            x = _stored_sum(x, r, h_ptr + h_row + i * h_d, i < D, EMULATE)
        x = x.to(tl.float32)
        squares += x * x
        start += BLOCK
    if PDL:
        gdc_launch_dependents()
    inverse_rms = tl.rsqrt(tl.sum(squares) / D + eps)
    # last block first: it is the likeliest to be in cache still
    while start > 0:
        start -= BLOCK
        i = start + column
        x = tl.load(x_ptr + x_row + i * x_d, mask=i < D, other=0.0, eviction_policy="evict_first")
        if RESIDUAL:
            r = tl.load(residual_ptr + r_row + i * r_d, mask=i < D, other=0.0, eviction_policy="evict_first")
            x = _stored_sum(x, r, h_ptr + h_row + i * h_d, i < D, EMULATE)
        y = x.to(tl.float32) * inverse_rms
        if WEIGHT:
            weight = tl.load(weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
            y = _weighted(y, weight, x_ptr.dtype.element_ty, ROUND_FIRST, EMULATE)
        tl.store(out_ptr + row * D + i, y.to(out_ptr.dtype.element_ty), mask=i < D)
