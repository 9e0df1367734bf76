"""Triton kernels for QK-RMSNorm + RoPE: q and k in one launch, each element read and written once, fp32 in between.

A head is held as pairs that turn together, `first` and `second` (HALF of each, padded to a power of two). A tile's rows
are some heads of some tokens where each head has its own norm, and all heads of one token where they share it.
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
    NEOX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """Table rows at offsets `row` (ROWS, 1): values for first and second elements; IDLE beyond the rotated width."""
    pair = tl.arange(0, HALF)[None, :]
    valid = row_valid & (pair < R // 2)
    if not FULL:
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
def _over_heads(table, TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr):
    """(TOKENS, HALF) repeated for every head of its token: (TOKENS * HEADS, HALF)."""
    return tl.reshape(tl.broadcast_to(tl.expand_dims(table, 1), (TOKENS, HEADS, HALF)), (TOKENS * HEADS, HALF))


@triton.jit
def _heads_tile(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, eps, block, B, S, H, x_b, x_s, x_h, x_d, table_b, table_s,
    out_b, out_s, out_h,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """HEADS heads of TOKENS tokens, each head normed by itself."""
    ROWS: tl.constexpr = TOKENS * HEADS
    head_blocks = (H + HEADS - 1) // HEADS
    token_block = block // head_blocks
    first_token = token_block.to(tl.int64) * TOKENS
    first_head = (block - token_block * head_blocks) * HEADS
    row = tl.arange(0, ROWS)
    token = first_token + row // HEADS
    head = (first_head + row % HEADS).to(tl.int64)
    valid = ((token < B * S) & (head < H))[:, None]
    b = token // S
    s = token - b * S
    x_row = (b * x_b + s * x_s + head * x_h)[:, None]
    first, second = _load_pairs(x_ptr, x_row, valid, x_d, ROWS, HALF, D, R, NEOX, "evict_first")
    own_token = first_token + tl.arange(0, TOKENS)
    own_b = own_token // S
    table_row = (own_b * table_b + (own_token - own_b * S) * table_s)[:, None]
    own_valid = (own_token < B * S)[:, None]
    cos_first, cos_second = _load_table(cos_ptr, table_row, own_valid, 1.0, TOKENS, HALF, R, NEOX, FULL)
    sin_first, sin_second = _load_table(sin_ptr, table_row, own_valid, 0.0, TOKENS, HALF, R, NEOX, FULL)
    zero = tl.zeros((1, 1), tl.int32)
    w_first, w_second = _load_pairs(weight_ptr, zero, zero == 0, 1, 1, HALF, D, R, NEOX, "evict_last")
    inverse_rms = tl.rsqrt(tl.sum(first * first + second * second, 1) / D + eps)[:, None]
    first = first * inverse_rms * w_first
    second = second * inverse_rms * w_second
    turned_first = first * _over_heads(cos_first, TOKENS, HEADS, HALF)
    turned_first -= second * _over_heads(sin_first, TOKENS, HEADS, HALF)
    turned_second = second * _over_heads(cos_second, TOKENS, HEADS, HALF)
    turned_second += first * _over_heads(sin_second, TOKENS, HEADS, HALF)
    out_row = (b * out_b + s * out_s + head * out_h)[:, None]
    _store_pairs(out_ptr, out_row, valid, turned_first, turned_second, ROWS, HALF, D, R, NEOX)


@triton.jit
def qknorm_rope_heads(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, eps, q_blocks, B, S, H, KV,
    q_b, q_s, q_h, q_d, k_b, k_s, k_h, k_d, table_b, table_s, qo_b, qo_s, qo_h, ko_b, ko_s, ko_h,
    Q_TOKENS: tl.constexpr, Q_HEADS: tl.constexpr, K_TOKENS: tl.constexpr, K_HEADS: tl.constexpr,
    HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """The first `q_blocks` programs take q, the others k."""
    block = tl.program_id(0)
    if block < q_blocks:
        _heads_tile(
            q_ptr, q_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, eps, block, B, S, H, q_b, q_s, q_h, q_d,
            table_b, table_s, qo_b, qo_s, qo_h, Q_TOKENS, Q_HEADS, HALF, D, R, NEOX, FULL,
        )  # fmt: skip
    else:
        _heads_tile(
            k_ptr, k_weight_ptr, cos_ptr, sin_ptr, k_out_ptr, eps, block - q_blocks, B, S, KV, k_b, k_s, k_h, k_d,
            table_b, table_s, ko_b, ko_s, ko_h, K_TOKENS, K_HEADS, HALF, D, R, NEOX, FULL,
        )  # fmt: skip


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
def _token_tile(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, out_ptr, eps, token, S, H, x_b, x_s, x_h, x_d, table_b, table_s,
    out_b, out_s, out_h,
    HEADS: tl.constexpr, TAIL: tl.constexpr, HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    NEOX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """All heads of one token, normed together: HEADS (a power of two) and TAIL (the rest, padded to one, or 0)."""
    b = token // S
    s = token - b * S
    x_token = b * x_b + s * x_s
    out_token = b * out_b + s * out_s
    head = tl.arange(0, HEADS).to(tl.int64)[:, None]
    always = head >= 0
    first, second = _load_pairs(x_ptr, x_token + head * x_h, always, x_d, HEADS, HALF, D, R, NEOX, "evict_first")
    squares = first * first + second * second
    if TAIL > 0:
        tail = HEADS + tl.arange(0, TAIL).to(tl.int64)[:, None]
        tail_first, tail_second = _load_pairs(
            x_ptr, x_token + tail * x_h, tail < H, x_d, TAIL, HALF, D, R, NEOX, "evict_first"
        )
        # fold onto the tail's rows first: one reduction over threads instead of two
        squares = tl.sum(tl.reshape(squares, (HEADS // TAIL, TAIL, HALF)), 0)
        squares += tail_first * tail_first + tail_second * tail_second
    table_row = (b * table_b + s * table_s) + tl.zeros((1, 1), tl.int64)
    cos_first, cos_second = _load_table(cos_ptr, table_row, table_row >= 0, 1.0, 1, HALF, R, NEOX, FULL)
    sin_first, sin_second = _load_table(sin_ptr, table_row, table_row >= 0, 0.0, 1, HALF, R, NEOX, FULL)
    w_first, w_second = _load_pairs(weight_ptr, head * D, always, 1, HEADS, HALF, D, R, NEOX, "evict_last")
    inverse_rms = tl.rsqrt(tl.sum(squares) / (H * D) + eps)
    _turn_and_store(
        out_ptr, out_token + head * out_h, always, first, second, inverse_rms, w_first, w_second, cos_first,
        cos_second, sin_first, sin_second, HEADS, HALF, D, R, NEOX,
    )  # fmt: skip
    if TAIL > 0:
        w_first, w_second = _load_pairs(weight_ptr, tail * D, tail < H, 1, TAIL, HALF, D, R, NEOX, "evict_last")
        _turn_and_store(
            out_ptr, out_token + tail * out_h, tail < H, tail_first, tail_second, inverse_rms, w_first, w_second,
            cos_first, cos_second, sin_first, sin_second, TAIL, HALF, D, R, NEOX,
        )  # fmt: skip


@triton.jit
def qknorm_rope_tokens(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, eps, tokens, S, H, KV,
    q_b, q_s, q_h, q_d, k_b, k_s, k_h, k_d, table_b, table_s, qo_b, qo_s, qo_h, ko_b, ko_s, ko_h,
    Q_HEADS: tl.constexpr, Q_TAIL: tl.constexpr, K_HEADS: tl.constexpr, K_TAIL: tl.constexpr,
    HALF: tl.constexpr, D: tl.constexpr, R: tl.constexpr, NEOX: tl.constexpr, FULL: tl.constexpr,
):  # fmt: skip
    """One program per token of q, then one per token of k."""
    program = tl.program_id(0).to(tl.int64)
    if program < tokens:
        _token_tile(
            q_ptr, q_weight_ptr, cos_ptr, sin_ptr, q_out_ptr, eps, program, S, H, q_b, q_s, q_h, q_d,
            table_b, table_s, qo_b, qo_s, qo_h, Q_HEADS, Q_TAIL, HALF, D, R, NEOX, FULL,
        )  # fmt: skip
    else:
        _token_tile(
            k_ptr, k_weight_ptr, cos_ptr, sin_ptr, k_out_ptr, eps, program - tokens, S, KV, k_b, k_s, k_h, k_d,
            table_b, table_s, ko_b, ko_s, ko_h, K_HEADS, K_TAIL, HALF, D, R, NEOX, FULL,
        )  # fmt: skip
