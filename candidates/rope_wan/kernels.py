"""Triton kernel for rotary embedding: a tile of TOKENS x HEADS x D per program, each element read and written once.

The tables' rows of a tile are read once for all of its heads. Interleaved pairs are split and joined in registers, so
that loads and stores stay whole 16-byte vectors. Compiled without fused multiply-adds, as aten computes: products and
sums round one by one, to 16 bits too where x and the tables are both 16-bit (ROUND_PRODUCTS).
"""

import triton
import triton.language as tl


@triton.jit
def _rounded(product, like, ROUND: tl.constexpr):
    """`product` rounded to `like`'s element type and back, when ROUND."""
    if ROUND:
        product = product.to(like.dtype.element_ty).to(tl.float32)
    return product


@triton.jit
def _turned(x1, x2, c1, s1, c2, s2, like, ROUND: tl.constexpr):
    x1, x2 = x1.to(tl.float32), x2.to(tl.float32)
    y1 = _rounded(x1 * c1, like, ROUND) - _rounded(x2 * s1, like, ROUND)
    y2 = _rounded(x1 * s2, like, ROUND) + _rounded(x2 * c2, like, ROUND)
    return y1, y2


@triton.jit
def _table(
    ptr, b, s, h, S, H, t_b, t_s, t_h, t_w, COLUMNS: tl.constexpr, PADDED: tl.constexpr, PER_HEAD: tl.constexpr
):  # fmt: skip
    """(TOKENS, 1 or HEADS, PADDED)."""
    column = tl.arange(0, PADDED)
    offset = b * t_b + s.to(tl.int64)[:, None, None] * t_s + column[None, None, :] * t_w
    valid = (s < S)[:, None, None] & (column < COLUMNS)[None, None, :]
    if PER_HEAD:
        offset += h.to(tl.int64)[None, :, None] * t_h
        valid = valid & (h < H)[None, :, None]
    return tl.load(ptr + offset, mask=valid, other=0.0, eviction_policy="evict_last")


@triton.jit
def _even_odd(table, PAIRS_PADDED: tl.constexpr):
    """Even and odd columns, in fp32."""
    return tl.split(tl.reshape(table.to(tl.float32), (table.shape[0], table.shape[1], PAIRS_PADDED, 2)))


@triton.jit
def _tables(
    cos_ptr, sin_ptr, b, s, h, S, H, c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w,
    PAIRS: tl.constexpr, PAIRS_PADDED: tl.constexpr, PER_HEAD: tl.constexpr, TABLES: tl.constexpr,
):  # fmt: skip
    """cos and sin for the first elements of all pairs, then for the second ones, in fp32."""
    if TABLES == "half":
        c1 = _table(cos_ptr, b, s, h, S, H, c_b, c_s, c_h, c_w, PAIRS, PAIRS_PADDED, PER_HEAD).to(tl.float32)
        s1 = _table(sin_ptr, b, s, h, S, H, s_b, s_s, s_h, s_w, PAIRS, PAIRS_PADDED, PER_HEAD).to(tl.float32)
        return c1, s1, c1, s1
    COLUMNS: tl.constexpr = 2 * PAIRS
    PADDED: tl.constexpr = 2 * PAIRS_PADDED
    cos = _table(cos_ptr, b, s, h, S, H, c_b, c_s, c_h, c_w, COLUMNS, PADDED, PER_HEAD)
    c1, c2 = _even_odd(cos, PAIRS_PADDED)
    if TABLES == "complex":
        return c1, c2, c1, c2
    sin = _table(sin_ptr, b, s, h, S, H, s_b, s_s, s_h, s_w, COLUMNS, PADDED, PER_HEAD)
    s1, s2 = _even_odd(sin, PAIRS_PADDED)
    if TABLES == "pair":
        return c1, s2, c1, s2
    return c1, s1, c2, s2


@triton.jit
def _rotate(
    x_ptr, out_ptr, cos_ptr, sin_ptr, b, s, head_block, S, H,
    x_b, x_s, x_h, x_d, o_b, o_s, o_h, o_group, c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w,
    D: tl.constexpr, PAIRS: tl.constexpr, PAIRS_PADDED: tl.constexpr, TAIL: tl.constexpr, HEADS: tl.constexpr,
    GROUP: tl.constexpr, INTERLEAVED: tl.constexpr, PER_HEAD: tl.constexpr, TABLES: tl.constexpr,
    ROUND_PRODUCTS: tl.constexpr,
):  # fmt: skip
    h = head_block * HEADS + tl.arange(0, HEADS)
    c1, s1, c2, s2 = _tables(
        cos_ptr, sin_ptr, b, s, h, S, H, c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w, PAIRS, PAIRS_PADDED, PER_HEAD, TABLES
    )  # fmt: skip
    x_row = b * x_b + s.to(tl.int64)[:, None] * x_s + h.to(tl.int64)[None, :] * x_h
    out_row = b * o_b + s.to(tl.int64)[:, None] * o_s
    if GROUP > 0:
        out_row = out_row + (h // GROUP).to(tl.int64)[None, :] * o_group + (h % GROUP).to(tl.int64)[None, :] * o_h
    else:
        out_row = out_row + h.to(tl.int64)[None, :] * o_h
    x_row, out_row = x_row[:, :, None], out_row[:, :, None]
    row_valid = ((s < S)[:, None] & (h < H)[None, :])[:, :, None]
    if INTERLEAVED:
        TOKENS: tl.constexpr = s.shape[0]
        d = tl.arange(0, 2 * PAIRS_PADDED)[None, None, :]
        valid = row_valid & (d < 2 * PAIRS)
        x = tl.load(x_ptr + x_row + d.to(tl.int64) * x_d, mask=valid, other=0.0, eviction_policy="evict_first")
        x1, x2 = tl.split(tl.reshape(x, (TOKENS, HEADS, PAIRS_PADDED, 2)))
        y1, y2 = _turned(x1, x2, c1, s1, c2, s2, x_ptr, ROUND_PRODUCTS)
        y = tl.reshape(tl.join(y1, y2), (TOKENS, HEADS, 2 * PAIRS_PADDED))
        tl.store(out_ptr + out_row + d, y.to(out_ptr.dtype.element_ty), mask=valid)
    else:
        d = tl.arange(0, PAIRS_PADDED)[None, None, :]
        valid = row_valid & (d < PAIRS)
        first, second = d.to(tl.int64) * x_d, (d + PAIRS).to(tl.int64) * x_d
        x1 = tl.load(x_ptr + x_row + first, mask=valid, other=0.0, eviction_policy="evict_first")
        x2 = tl.load(x_ptr + x_row + second, mask=valid, other=0.0, eviction_policy="evict_first")
        y1, y2 = _turned(x1, x2, c1, s1, c2, s2, x_ptr, ROUND_PRODUCTS)
        tl.store(out_ptr + out_row + d, y1.to(out_ptr.dtype.element_ty), mask=valid)
        tl.store(out_ptr + out_row + d + PAIRS, y2.to(out_ptr.dtype.element_ty), mask=valid)
    if TAIL > 0:
        d = 2 * PAIRS + tl.arange(0, TAIL)[None, None, :]
        valid = row_valid & (d < D)
        rest = tl.load(x_ptr + x_row + d.to(tl.int64) * x_d, mask=valid, other=0.0, eviction_policy="evict_first")
        tl.store(out_ptr + out_row + d, rest, mask=valid)


@triton.jit
def rope_tile(
    x_ptr, out_ptr, x2_ptr, out2_ptr, cos_ptr, sin_ptr, S, H, H2, blocks_s, blocks_h, blocks_h2,
    x_b, x_s, x_h, x_d, o_b, o_s, o_h, o_group, x2_b, x2_s, x2_h, x2_d, o2_b, o2_s, o2_h,
    c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w,
    D: tl.constexpr, PAIRS: tl.constexpr, PAIRS_PADDED: tl.constexpr, TAIL: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, HEADS2: tl.constexpr, GROUP: tl.constexpr, INTERLEAVED: tl.constexpr, PER_HEAD: tl.constexpr,
    TABLES: tl.constexpr, ROUND_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Rotates x (B, S, H, D), and x2 (B, S, H2, D) with the same tables when HEADS2 > 0; out is dense in its last dim.

    Programs of one block of tokens follow each other, its tables in cache. With GROUP > 0, head h of out lies
    h // GROUP times o_group and h % GROUP times o_h from head 0. TABLES says how the columns of cos and sin go to
    pairs: `half` one for each, `elementwise` one for each element, `pair` cos from the even and sin from the odd ones,
    and `complex` the same, both in `cos`.
    """
    pid = tl.program_id(0)
    head_block = pid % (blocks_h + blocks_h2)
    token_block = pid // (blocks_h + blocks_h2)
    b = (token_block // blocks_s).to(tl.int64)
    s = (token_block % blocks_s) * TOKENS + tl.arange(0, TOKENS)
    if head_block < blocks_h:
        _rotate(
            x_ptr, out_ptr, cos_ptr, sin_ptr, b, s, head_block, S, H, x_b, x_s, x_h, x_d, o_b, o_s, o_h, o_group,
            c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w, D, PAIRS, PAIRS_PADDED, TAIL, HEADS, GROUP, INTERLEAVED, PER_HEAD,
            TABLES, ROUND_PRODUCTS,
        )  # fmt: skip
    elif HEADS2 > 0:
        _rotate(
            x2_ptr, out2_ptr, cos_ptr, sin_ptr, b, s, head_block - blocks_h, S, H2, x2_b, x2_s, x2_h, x2_d,
            o2_b, o2_s, o2_h, 0, c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w, D, PAIRS, PAIRS_PADDED, TAIL, HEADS2, 0,
            INTERLEAVED, PER_HEAD, TABLES, ROUND_PRODUCTS,
        )  # fmt: skip
