"""Triton kernel for rotary embedding: each element read and written once, by whole vectors of interleaved pairs too.

A program takes TOKENS rows of x (a row is one head of one token), HEADS times. With one head the rows follow each other
in memory, heads of a token first, and each has its token's row of the tables; with more, the rows are TOKENS tokens of
one head after the other, and the tables are read once for all of the heads. All of x is asked for before any of it is
used. Interleaved pairs are split and joined in registers. Offsets of rows are int64.

Compiled without fused multiply-adds, as aten computes: products and sums round one by one, to 16 bits too where x and
the tables are both 16-bit (ROUND_PRODUCTS).
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
def _columns(rows, valid, first: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr):
    """COUNT columns from `first` on, padded to PADDED, and where they are there in the `valid` rows of `rows`."""
    column = tl.arange(0, PADDED)[None, :]
    if PADDED != COUNT:
        valid = valid & (column < COUNT)
    return first + column, valid


@triton.jit
def _load(rows, valid, stride, first: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr, POLICY: tl.constexpr):
    column, valid = _columns(rows, valid, first, COUNT, PADDED)
    return tl.load(rows + column.to(tl.int64) * stride, mask=valid, eviction_policy=POLICY)


@triton.jit
def _load_pairs(
    rows, valid, stride, PAIRS: tl.constexpr, PADDED: tl.constexpr, INTERLEAVED: tl.constexpr, POLICY: tl.constexpr
):  # fmt: skip
    """First and second elements of the pairs in rows that begin at `rows` (TOKENS, 1)."""
    if INTERLEAVED:
        both = _load(rows, valid, stride, 0, 2 * PAIRS, 2 * PADDED, POLICY)
        first, second = tl.split(tl.reshape(both, (rows.shape[0], PADDED, 2)))
    else:
        first = _load(rows, valid, stride, 0, PAIRS, PADDED, POLICY)
        second = _load(rows, valid, stride, PAIRS, PAIRS, PADDED, POLICY)
    return first, second


@triton.jit
def _store(rows, valid, y, first: tl.constexpr, COUNT: tl.constexpr, PADDED: tl.constexpr):
    column, valid = _columns(rows, valid, first, COUNT, PADDED)
    tl.store(rows + column, y.to(rows.dtype.element_ty), mask=valid)


@triton.jit
def _store_pairs(rows, valid, y1, y2, PAIRS: tl.constexpr, PADDED: tl.constexpr, INTERLEAVED: tl.constexpr):
    if INTERLEAVED:
        y = tl.reshape(tl.join(y1, y2), (rows.shape[0], 2 * PADDED))
        _store(rows, valid, y, 0, 2 * PAIRS, 2 * PADDED)
    else:
        _store(rows, valid, y1, 0, PAIRS, PADDED)
        _store(rows, valid, y2, PAIRS, PAIRS, PADDED)


@triton.jit
def _tables(cos, sin, valid, c_w, s_w, PAIRS: tl.constexpr, PADDED: tl.constexpr, TABLES: tl.constexpr):
    """cos and sin for the first elements of all pairs, then for the second ones, in fp32."""
    if TABLES == "half":
        c1 = _load(cos, valid, c_w, 0, PAIRS, PADDED, "evict_last").to(tl.float32)
        s1 = _load(sin, valid, s_w, 0, PAIRS, PADDED, "evict_last").to(tl.float32)
        return c1, s1, c1, s1
    c1, c2 = _load_pairs(cos, valid, c_w, PAIRS, PADDED, True, "evict_last")
    c1, c2 = c1.to(tl.float32), c2.to(tl.float32)
    if TABLES == "complex":
        return c1, c2, c1, c2
    s1, s2 = _load_pairs(sin, valid, s_w, PAIRS, PADDED, True, "evict_last")
    s1, s2 = s1.to(tl.float32), s2.to(tl.float32)
    if TABLES == "pair":
        return c1, s2, c1, s2
    return c1, s1, c2, s2


@triton.jit
def _rotate(
    x_ptr, out_ptr, cos_ptr, sin_ptr, start, part, S,
    x_s, x_h, x_d, o_s, o_h, o_group, c_s, c_h, c_w, s_s, s_h, s_w,
    H: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, TAIL: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, INTERLEAVED: tl.constexpr, PER_HEAD: tl.constexpr,
    TABLES: tl.constexpr, ROUND_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Part `part` of H / HEADS of the tokens from `start` on."""
    if HEADS == 1:
        row = (part * TOKENS + tl.arange(0, TOKENS))[:, None]
        token = start + row // H
        head = row % H
    else:
        token = start + tl.arange(0, TOKENS)[:, None]
        head = part * HEADS
    valid = token < S
    token, head = token.to(tl.int64), head.to(tl.int64)
    REST: tl.constexpr = D - 2 * PAIRS
    firsts, seconds, rests = (), (), ()
    for i in tl.static_range(HEADS):
        rows = x_ptr + (token * x_s + (head + i) * x_h)
        x1, x2 = _load_pairs(rows, valid, x_d, PAIRS, PADDED, INTERLEAVED, "")
        firsts, seconds = firsts + (x1,), seconds + (x2,)  # noqa: RUF005 (Triton knows no unpacking)
        if REST > 0:
            rests = rests + (_load(rows, valid, x_d, 2 * PAIRS, REST, TAIL, ""),)  # noqa: RUF005
    cos, sin = cos_ptr + token * c_s, sin_ptr + token * s_s
    if PER_HEAD:
        tl.static_assert(HEADS == 1, "heads with tables of their own share none")
        cos += head * c_h
        sin += head * s_h
    c1, s1, c2, s2 = _tables(cos, sin, valid, c_w, s_w, PAIRS, PADDED, TABLES)
    for i in tl.static_range(HEADS):
        y1, y2 = _turned(firsts[i], seconds[i], c1, s1, c2, s2, x_ptr, ROUND_PRODUCTS)
        at = (head + i) * o_h
        if GROUP > 0:
            at = (head + i) // GROUP * o_group + (head + i) % GROUP * o_h
        rows = out_ptr + (token * o_s + at)
        _store_pairs(rows, valid, y1, y2, PAIRS, PADDED, INTERLEAVED)
        if REST > 0:
            _store(rows, valid, rests[i], 2 * PAIRS, REST, TAIL)


@triton.jit(do_not_specialize=["S", "blocks"])
def rope_tile(
    x_ptr, out_ptr, x2_ptr, out2_ptr, cos_ptr, sin_ptr, S, blocks,
    x_b, x_s, x_h, x_d, o_b, o_s, o_h, o_group, x2_b, x2_s, x2_h, x2_d, o2_b, o2_s, o2_h,
    c_b, c_s, c_h, c_w, s_b, s_s, s_h, s_w,
    H: tl.constexpr, H2: tl.constexpr, D: tl.constexpr, PAIRS: tl.constexpr, PADDED: tl.constexpr, TAIL: tl.constexpr,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, ONE_BATCH: tl.constexpr, GROUP: tl.constexpr,
    INTERLEAVED: tl.constexpr, PER_HEAD: tl.constexpr, TABLES: tl.constexpr, ROUND_PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Rotates x (B, S, H, D), and x2 (B, S, H2, D) with the same tables when H2 > 0; out is dense in its last dim.

    The programs of one of `blocks` blocks of TOKENS tokens follow each other, its tables in cache. HEADS divides H and
    H2. With GROUP > 0, head h of out lies h // GROUP times o_group and h % GROUP times o_h from head 0. TABLES says how
    the columns of cos and sin go to pairs: `half` one for each, `elementwise` one for each element, `pair` cos from the
    even and sin from the odd ones, and `complex` the same, both in `cos`.
    """
    PARTS: tl.constexpr = H // HEADS
    PROGRAMS: tl.constexpr = PARTS + H2 // HEADS
    pid = tl.program_id(0)
    block = pid // PROGRAMS
    part = pid - block * PROGRAMS
    if not ONE_BATCH:
        b = (block // blocks).to(tl.int64)
        block = block % blocks
        x_ptr += b * x_b
        out_ptr += b * o_b
        x2_ptr += b * x2_b
        out2_ptr += b * o2_b
        cos_ptr += b * c_b
        sin_ptr += b * s_b
    start = block * TOKENS
    if H2 == 0 or part < PARTS:
        _rotate(
            x_ptr, out_ptr, cos_ptr, sin_ptr, start, part, S, x_s, x_h, x_d, o_s, o_h, o_group,
            c_s, c_h, c_w, s_s, s_h, s_w, H, D, PAIRS, PADDED, TAIL, TOKENS, HEADS, GROUP, INTERLEAVED, PER_HEAD,
            TABLES, ROUND_PRODUCTS,
        )  # fmt: skip
    else:
        _rotate(
            x2_ptr, out2_ptr, cos_ptr, sin_ptr, start, part - PARTS, S, x2_s, x2_h, x2_d, o2_s, o2_h, 0,
            c_s, c_h, c_w, s_s, s_h, s_w, H2, D, PAIRS, PADDED, TAIL, TOKENS, HEADS, 0, INTERLEAVED, PER_HEAD,
            TABLES, ROUND_PRODUCTS,
        )  # fmt: skip
