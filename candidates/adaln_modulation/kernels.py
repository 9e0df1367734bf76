"""Triton kernel for adaLN modulation and gate, bit-exact to eager PyTorch: it rounds where the formula rounds.

A program takes COLS channels of ROWS tokens of one group (a batch element, a frame), token by token: each is a row in
registers behind an offset that is one number for the program, and a table with one row for the group is read once for
all of them. All tokens are asked for before one is used. Offsets of rows are int64.
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
def _table(ptr, token, row, column, inside, stride, PER: tl.constexpr):
    """A row of a table as fp32: the group's (PER 1), the token's (2), or `row` of the index (3)."""
    if PER == 2:
        ptr += token * stride
    if PER == 3:
        ptr += row * stride
    return tl.load(ptr + column, mask=inside, eviction_policy="evict_last" if PER == 1 else "").to(tl.float32)


@triton.jit(do_not_specialize=["groups", "tiles", "L"])
def adaln_modulation_tile(
    x_ptr, scale_ptr, shift_ptr, residual_ptr, index_ptr, out_ptr, constant, groups, tiles, L, D,
    x_b, x_t, x_d, r_b, r_t, r_d, o_b, o_t, o_d, c_b, c_g, c_t, h_b, h_g, h_t, i_t,
    ROWS: tl.constexpr, COLS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr, ONE_GROUP: tl.constexpr,
    SCALE: tl.constexpr, SHIFT: tl.constexpr, RESIDUAL: tl.constexpr, CONSTANT: tl.constexpr,
    ROUND_FACTOR: tl.constexpr, ROUND_PRODUCT: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """x * (constant + scale) (+ shift or residual); grid (batches * groups * tiles * COLUMNS,), L >= ROWS tokens each.

    EVEN: D is COLUMNS times COLS. ONE_GROUP: one group in one batch, so that nothing is divided by a runtime number.
    """
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    pid = tl.program_id(0)
    tile = pid // COLUMNS
    column = (pid - tile * COLUMNS) * COLS + tl.arange(0, COLS)
    inside = None if EVEN else column < D
    # a group's last tile ends with its last token and writes some a second time, the same: no row needs a mask
    if ONE_GROUP:
        token = tl.minimum(tile * ROWS, L - ROWS).to(tl.int64)
    else:
        run = tile // tiles
        batch = (run // groups).to(tl.int64)
        group = (run % groups).to(tl.int64)
        token = group * L + tl.minimum((tile - run * tiles) * ROWS, L - ROWS)
        x_ptr += batch * x_b
        residual_ptr += batch * r_b
        out_ptr += batch * o_b
        scale_ptr += batch * c_b + group * c_g
        shift_ptr += batch * h_b + group * h_g
    wide = column.to(tl.int64)
    xs, residuals, factors, shifts = (), (), (), ()
    for i in tl.static_range(ROWS):
        xs = xs + (tl.load(x_ptr + (token + i) * x_t + wide * x_d, mask=inside),)  # noqa: RUF005 (Triton knows no unpacking)
        if RESIDUAL:
            residuals = residuals + (tl.load(residual_ptr + (token + i) * r_t + wide * r_d, mask=inside),)  # noqa: RUF005
    for i in tl.static_range(ROWS):
        row = token + i
        if SCALE == 3:
            row = tl.load(index_ptr + row * i_t).to(tl.int64)
        if i == 0 or SCALE > 1:
            factor = _table(scale_ptr, token + i, row, column, inside, c_t, SCALE)
            if CONSTANT:
                factor = constant + factor
                if ROUND_FACTOR:
                    factor = _rounded(factor, scale_ptr.dtype.element_ty, EMULATE)
        factors = factors + (factor,)  # noqa: RUF005
        if SHIFT > 0:
            if i == 0 or SHIFT > 1:
                shift = _table(shift_ptr, token + i, row, column, inside, h_t, SHIFT)
            shifts = shifts + (shift,)  # noqa: RUF005
    for i in tl.static_range(ROWS):
        y = xs[i].to(tl.float32) * factors[i]
        if ROUND_PRODUCT:
            y = _rounded(y, dtype, EMULATE)
        if SHIFT > 0:
            y += shifts[i]
        if RESIDUAL:
            y = residuals[i].to(tl.float32) + y
        if EMULATE:
            y = _rounded(y, dtype, EMULATE)
        tl.store(out_ptr + (token + i) * o_t + wide * o_d, y.to(dtype), mask=inside)
