"""Triton kernel for adaLN modulation and gate, bit-exact to eager PyTorch: it rounds where the formula rounds.

A program takes ROWS tokens of one group (a batch element, a frame) by COLS channels; a table with one row for the group
is read once for all of them. Offsets of rows are int64.
"""

import triton
import triton.language as tl


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
def _table(
    ptr, batch, group, token, row, column, valid, s_b, s_g, s_t, PER: tl.constexpr
):  # fmt: skip
    """Rows of a table as fp32: one for the group (PER 1), one per token (2), one per row of the index (3)."""
    if PER == 1:
        base = batch.to(tl.int64) * s_b + group.to(tl.int64) * s_g
        y = tl.load(ptr + base + column, mask=valid, other=0.0, eviction_policy="evict_last")
    else:
        at = row if PER == 3 else token
        base = batch.to(tl.int64) * s_b + at.to(tl.int64) * s_t
        y = tl.load(ptr + base + column, mask=valid, other=0.0)
    return y.to(tl.float32)


@triton.jit
def adaln_modulation_tile(
    x_ptr, scale_ptr, shift_ptr, residual_ptr, index_ptr, out_ptr, constant, groups, tiles, columns, L, D,
    x_b, x_t, x_d, r_b, r_t, r_d, o_b, o_t, o_d, c_b, c_g, c_t, h_b, h_g, h_t, i_t,
    ROWS: tl.constexpr, COLS: tl.constexpr, SCALE: tl.constexpr, SHIFT: tl.constexpr, RESIDUAL: tl.constexpr,
    CONSTANT: tl.constexpr, ROUND_FACTOR: tl.constexpr, ROUND_PRODUCT: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """x * (constant + scale) (+ shift or residual); grid (batches * groups * tiles * columns,), L tokens per group."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    pid = tl.program_id(0)
    line = pid // columns
    column = ((pid - line * columns) * COLS + tl.arange(0, COLS))[None, :]
    run = line // tiles
    batch = run // groups
    group = run - batch * groups
    within = ((line - run * tiles) * ROWS + tl.arange(0, ROWS))[:, None]
    token = group * L + within
    valid = (within < L) & (column < D)
    row = token
    if SCALE == 3:
        row = tl.load(index_ptr + token.to(tl.int64) * i_t, mask=within < L, other=0)
    first, far = batch.to(tl.int64), token.to(tl.int64)
    x = tl.load(x_ptr + first * x_b + far * x_t + column.to(tl.int64) * x_d, mask=valid, other=0.0,
                eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    if RESIDUAL:
        residual = tl.load(residual_ptr + first * r_b + far * r_t + column.to(tl.int64) * r_d, mask=valid, other=0.0,
                           eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    in_table = column < D if SCALE == 1 else valid
    factor = _table(scale_ptr, batch, group, token, row, column, in_table, c_b, c_g, c_t, SCALE)
    if CONSTANT:
        factor = constant + factor
        if ROUND_FACTOR:
            factor = _rounded(factor, scale_ptr.dtype.element_ty, EMULATE)
    y = x * factor
    if ROUND_PRODUCT:
        y = _rounded(y, dtype, EMULATE)
    if SHIFT > 0:
        in_table = column < D if SHIFT == 1 else valid
        y += _table(shift_ptr, batch, group, token, row, column, in_table, h_b, h_g, h_t, SHIFT)
    if RESIDUAL:
        y = residual + y
    if EMULATE:
        y = _rounded(y, dtype, EMULATE)
    tl.store(out_ptr + first * o_b + far * o_t + column.to(tl.int64) * o_d, y.to(dtype), mask=valid)
