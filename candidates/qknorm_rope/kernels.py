"""Triton kernels for QK-RMSNorm + RoPE: q and k in one launch, each element read and written once, fp32 in between.

A head is held as pairs that turn together, `first` and `second` (HALF of each, padded to a power of two). A program of
`heads` takes heads in x's order; one of `tokens` all heads of a token, group by group with one row of the tables.
Tables and weights are read in the layout of x, from L1 where rows share them: nothing but a norm across heads goes
through shared memory.
"""

import triton
import triton.language as tl


@triton.jit
def _pair_columns(HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr):
    """Columns of a half-split head's pairs: (i, i + R/2) turn together, then the rest, split in two, which do not."""
    pair = tl.arange(0, HALF)[None, :]
    if R == D:
        first, second = pair, pair + R // 2
    else:
        first = tl.where(pair < R // 2, pair, pair + R // 2)
        second = tl.where(pair < R // 2, pair + R // 2, pair + D // 2)
    return first, second


@triton.jit
def _load_pairs(
    ptr, row, row_valid, stride, ROWS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Rows of D elements at offsets `row` (ROWS, 1), as fp32 first and second elements (ROWS, HALF)."""
    if NEOX:
        first_column, second_column = _pair_columns(HALF, D, R)
        valid = row_valid & (tl.arange(0, HALF)[None, :] < D // 2)
        first_at = ptr + (row + first_column.to(tl.int64) * stride)
        second_at = ptr + (row + second_column.to(tl.int64) * stride)
        first = tl.load(first_at, mask=valid, other=0.0, eviction_policy=POLICY)
        second = tl.load(second_at, mask=valid, other=0.0, eviction_policy=POLICY)
    else:
        column = tl.arange(0, 2 * HALF)[None, :]
        at = ptr + (row + column.to(tl.int64) * stride)
        x = tl.load(at, mask=row_valid & (column < D), other=0.0, eviction_policy=POLICY)
        first, second = tl.split(tl.reshape(x, (ROWS, HALF, 2)))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_pairs(
    ptr, row, row_valid, first, second, ROWS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr,
):  # fmt: skip
    if NEOX:
        first_column, second_column = _pair_columns(HALF, D, R)
        valid = row_valid & (tl.arange(0, HALF)[None, :] < D // 2)
        tl.store(ptr + row + first_column, first.to(ptr.dtype.element_ty), mask=valid)
        tl.store(ptr + row + second_column, second.to(ptr.dtype.element_ty), mask=valid)
    else:
        column = tl.arange(0, 2 * HALF)[None, :]
        y = tl.reshape(tl.join(first, second), (ROWS, 2 * HALF)).to(ptr.dtype.element_ty)
        tl.store(ptr + row + column, y, mask=row_valid & (column < D))


@triton.jit
def _load_table(
    ptr, row, row_valid, IDLE: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """Table rows at offsets `row` (ROWS, 1): values for first and second elements; IDLE beyond the rotated width.

    TABLE: `half` has one column for each pair, `full` one for each element, `repeated` the same with equal pairs;
    interleaved ones are read whole, in vectors.
    """
    pair = tl.arange(0, HALF)[None, :]
    valid = row_valid & (pair < R // 2)
    if TABLE == "half" or (TABLE == "repeated" and NEOX):
        # the second copy of a half-split table is far from the first: it is not read
        first = tl.load(ptr + row + pair, mask=valid, other=IDLE, eviction_policy="evict_last")
        second = first
    elif NEOX:
        first = tl.load(ptr + row + pair, mask=valid, other=IDLE, eviction_policy="evict_last")
        second = tl.load(ptr + row + R // 2 + pair, mask=valid, other=IDLE, eviction_policy="evict_last")
    else:
        column = tl.arange(0, 2 * HALF)[None, :]
        both = tl.load(ptr + row + column, mask=row_valid & (column < R), other=IDLE, eviction_policy="evict_last")
        first, second = tl.split(tl.reshape(both, (ROWS, HALF, 2)))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _turn_and_store(
    out_ptr, out_row, valid, first, second, inverse_rms, w_first, w_second, cos_first, cos_second, sin_first,
    sin_second, HEADS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr,
):  # fmt: skip
    first = first * inverse_rms * w_first
    second = second * inverse_rms * w_second
    turned_first = first * cos_first - second * sin_first
    turned_second = second * cos_second + first * sin_second
    _store_pairs(out_ptr, out_row, valid, turned_first, turned_second, HEADS, HALF, D, R, NEOX)


@triton.jit
def _heads_tile(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, eps, block, tokens, S, x_b, x_s, x_h, x_d, table_b, table_s,
    out_b, out_s, out_h,
    H: tl.constexpr, ROWS: tl.constexpr, ONE_BATCH: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, NEOX: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """ROWS heads, those of a token one after the other, each normed by itself and with its own row of the tables."""
    row = block * ROWS + tl.arange(0, ROWS)[:, None]
    valid = row < tokens * H
    token = row // H
    head = (row - token * H).to(tl.int64)
    if ONE_BATCH:
        s = token.to(tl.int64)
        x_row = s * x_s + head * x_h
        out_row = s * out_s + head * out_h
        table_row = s * table_s
    else:
        b = token // S
        s = (token - b * S).to(tl.int64)
        b = b.to(tl.int64)
        x_row = b * x_b + s * x_s + head * x_h
        out_row = b * out_b + s * out_s + head * out_h
        table_row = b * table_b + s * table_s
    first, second = _load_pairs(x_ptr, x_row, valid, x_d, ROWS, HALF, D, R, NEOX, "evict_first")
    cos_first, cos_second = _load_table(cos_ptr, table_row, valid, 1.0, ROWS, HALF, R, NEOX, TABLE)
    sin_first, sin_second = _load_table(sin_ptr, table_row, valid, 0.0, ROWS, HALF, R, NEOX, TABLE)
    # once for each row, from L1: laid out as x is, where one row would be handed out through shared memory
    no_row = tl.zeros((ROWS, 1), tl.int32)
    w_first, w_second = _load_pairs(weight_ptr, no_row, no_row == 0, 1, ROWS, HALF, D, R, NEOX, "evict_last")
    inverse_rms = tl.rsqrt(tl.sum(first * first + second * second, 1) / D + eps)[:, None]
    _turn_and_store(
        out_ptr, out_row, valid, first, second, inverse_rms, w_first, w_second, cos_first, cos_second, sin_first,
        sin_second, ROWS, HALF, D, R, NEOX,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "S"])
def qknorm_rope_heads(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, eps, tokens, S,
    q_b, q_s, q_h, q_d, k_b, k_s, k_h, k_d, table_b, table_s, qo_b, qo_s, qo_h, ko_b, ko_s, ko_h,
    H: tl.constexpr, KV: tl.constexpr, ROWS: tl.constexpr, ONE_BATCH: tl.constexpr, HALF: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """The first programs take q, the others k."""
    block = tl.program_id(0)
    q_blocks = (tokens * H + ROWS - 1) // ROWS
    if block < q_blocks:
        _heads_tile(
            q_ptr, q_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, eps, block, tokens, S, q_b, q_s, q_h, q_d,
            table_b, table_s, qo_b, qo_s, qo_h, H, ROWS, ONE_BATCH, HALF, D, R, NEOX, TABLE,
        )  # fmt: skip
    else:
        _heads_tile(
            k_ptr, k_weight_ptr, cos_ptr, sin_ptr, k_out_ptr, eps, block - q_blocks, tokens, S, k_b, k_s, k_h, k_d,
            table_b, table_s, ko_b, ko_s, ko_h, KV, ROWS, ONE_BATCH, HALF, D, R, NEOX, TABLE,
        )  # fmt: skip


@triton.jit
def _token_tile(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, eps, token, S, x_b, x_s, x_h, x_d, table_b, table_s,
    out_b, out_s, out_h,
    H: tl.constexpr, ACROSS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """All heads of one token, GROUP at a time, all of them asked for before any is used; normed together with ACROSS,
    else each by itself."""
    b = token // S
    s = (token - b * S).to(tl.int64)
    b = b.to(tl.int64)
    x_token = b * x_b + s * x_s
    out_token = b * out_b + s * out_s
    GROUPS: tl.constexpr = (H + GROUP - 1) // GROUP
    row = tl.arange(0, GROUP)[:, None]
    firsts, seconds, w_firsts, w_seconds = (), (), (), ()
    for i in tl.static_range(GROUPS):
        head = (i * GROUP + row).to(tl.int64)
        first, second = _load_pairs(x_ptr, x_token + head * x_h, head < H, x_d, GROUP, HALF, D, R, NEOX, "evict_first")
        firsts, seconds = firsts + (first,), seconds + (second,)  # noqa: RUF005 (Triton knows no unpacking)
    # once for each head of a group, from L1: laid out as x is, and the same for all groups
    always = row >= 0
    for i in tl.static_range(GROUPS):
        head = i * GROUP + row
        if ACROSS:
            first, second = _load_pairs(weight_ptr, head * D, head < H, 1, GROUP, HALF, D, R, NEOX, "evict_last")
        elif i == 0:
            first, second = _load_pairs(weight_ptr, row * 0, always, 1, GROUP, HALF, D, R, NEOX, "evict_last")
        w_firsts, w_seconds = w_firsts + (first,), w_seconds + (second,)  # noqa: RUF005
    table_row = (b * table_b + s * table_s) + tl.zeros((GROUP, 1), tl.int64)
    cos_first, cos_second = _load_table(cos_ptr, table_row, always, 1.0, GROUP, HALF, R, NEOX, TABLE)
    sin_first, sin_second = _load_table(sin_ptr, table_row, always, 0.0, GROUP, HALF, R, NEOX, TABLE)
    if ACROSS:
        squares = firsts[0] * firsts[0] + seconds[0] * seconds[0]
        for i in tl.static_range(1, GROUPS):
            squares += firsts[i] * firsts[i] + seconds[i] * seconds[i]
        inverse_rms = tl.rsqrt(tl.sum(squares) / (H * D) + eps)
    for i in tl.static_range(GROUPS):
        head = (i * GROUP + row).to(tl.int64)
        if not ACROSS:
            inverse_rms = tl.rsqrt(tl.sum(firsts[i] * firsts[i] + seconds[i] * seconds[i], 1) / D + eps)[:, None]
        _turn_and_store(
            out_ptr, out_token + head * out_h, head < H, firsts[i], seconds[i], inverse_rms, w_firsts[i], w_seconds[i],
            cos_first, cos_second, sin_first, sin_second, GROUP, HALF, D, R, NEOX,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "S"])
def qknorm_rope_tokens(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, eps, tokens, S,
    q_b, q_s, q_h, q_d, k_b, k_s, k_h, k_d, table_b, table_s, qo_b, qo_s, qo_h, ko_b, ko_s, ko_h,
    H: tl.constexpr, KV: tl.constexpr, ACROSS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, NEOX: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """One program per token of q, then one per token of k."""
    program = tl.program_id(0)
    if program < tokens:
        _token_tile(
            q_ptr, q_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, eps, program, S, q_b, q_s, q_h, q_d,
            table_b, table_s, qo_b, qo_s, qo_h, H, ACROSS, GROUP, HALF, D, R, NEOX, TABLE,
        )  # fmt: skip
    else:
        _token_tile(
            k_ptr, k_weight_ptr, cos_ptr, sin_ptr, k_out_ptr, eps, program - tokens, S, k_b, k_s, k_h, k_d,
            table_b, table_s, ko_b, ko_s, ko_h, KV, ACROSS, GROUP, HALF, D, R, NEOX, TABLE,
        )  # fmt: skip
