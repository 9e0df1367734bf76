"""Triton kernel for LayerNorm over the last dim, plain, affine or modulated, alone or after a gated residual add.

fp32 inside, one rounding per output. A row of D is held as two pieces, HEAD (the largest power of two <= D) and TAIL
(the rest, padded to a power of two or 0), so that D = 1536, 3072 or 5120 idles no lane. The variance is that of the
deviations from the mean, never E[x²] - mean²: rows stay in registers, so the second look costs no memory traffic.

PDL (programmatic dependent launch): a kernel may be started before its predecessor has ended and waits for it before it
touches memory, so that only launches overlap; once a row is read, the successor may be started.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def group_offset(b, s, s_b, s_g, TOKENS):
    """Element offset of the modulation row of token s of batch b; TOKENS tokens share one."""
    return tl.cast(b, tl.int64) * s_b + tl.cast(s // TOKENS, tl.int64) * s_g


@triton.jit
def _input(
    x_ptr, residual_ptr, gate_ptr, h_ptr, x_offset, r_offset, g_offset, h_offset, mask,
    RESIDUAL: tl.constexpr, GATE_POLICY: tl.constexpr,
):  # fmt: skip
    """x, or residual + x * gate rounded to x's dtype and stored, in fp32."""
    x = tl.load(x_ptr + x_offset, mask=mask, other=0.0, eviction_policy="evict_first")
    if RESIDUAL:
        r = tl.load(residual_ptr + r_offset, mask=mask, other=0.0, eviction_policy="evict_first")
        gate = tl.load(gate_ptr + g_offset, mask=mask, other=0.0, eviction_policy=GATE_POLICY)
        x = (r.to(tl.float32) + x.to(tl.float32) * gate.to(tl.float32)).to(x.dtype)
        tl.store(h_ptr + h_offset, x, mask=mask)
    return x.to(tl.float32)


@triton.jit
def _output(
    y, out_ptr, out_offset, mul_ptr, mul_offset, add_ptr, add_offset, mask,
    ONE: tl.constexpr, AFFINE: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Store y, or y * (ONE + mul) + add."""
    if AFFINE:
        mul = tl.load(mul_ptr + mul_offset, mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
        add = tl.load(add_ptr + add_offset, mask=mask, other=0.0, eviction_policy=POLICY).to(tl.float32)
        y = y * (ONE + mul) + add
    tl.store(out_ptr + out_offset, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layernorm_tile(
    x_ptr, residual_ptr, gate_ptr, mul_ptr, add_ptr, out_ptr, h_ptr, eps, rows, S, D,
    x_b, x_s, x_d, r_b, r_s, r_d, g_b, g_g, GATE_TOKENS, m_b, m_g, MUL_TOKENS, a_b, a_g, ADD_TOKENS,
    ROWS: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr, ONE: tl.constexpr, AFFINE: tl.constexpr,
    RESIDUAL: tl.constexpr, POLICY: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS of the B * S rows per program; out and h are contiguous. ONE is 1 for a modulation, 0 for an affine part."""
    if PDL:
        gdc_wait()
    # rows are counted in 32 bits, for a division's sake, and elements in 64
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b = row // S
    s = row - b * S
    x_row = group_offset(b, s, x_b, x_s, 1)[:, None]
    r_row = group_offset(b, s, r_b, r_s, 1)[:, None]
    g_row = group_offset(b, s, g_b, g_g, GATE_TOKENS)[:, None]
    m_row = group_offset(b, s, m_b, m_g, MUL_TOKENS)[:, None]
    a_row = group_offset(b, s, a_b, a_g, ADD_TOKENS)[:, None]
    out_row = (row.to(tl.int64) * D)[:, None]
    valid = (row < rows)[:, None]
    head = tl.arange(0, HEAD)[None, :]
    head_x = _input(
        x_ptr, residual_ptr, gate_ptr, h_ptr, x_row + head * x_d, r_row + head * r_d, g_row + head, out_row + head,
        valid, RESIDUAL, POLICY,
    )  # fmt: skip
    total = head_x
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)[None, :]
        tail_valid = valid & (tail < D)
        tail_x = _input(
            x_ptr, residual_ptr, gate_ptr, h_ptr, x_row + tail * x_d, r_row + tail * r_d, g_row + tail, out_row + tail,
            tail_valid, RESIDUAL, POLICY,
        )  # fmt: skip
        # fold onto the tail's columns first: one reduction over threads instead of two
        total = tl.sum(tl.reshape(head_x, (ROWS, HEAD // TAIL, TAIL)), 1) + tail_x
    mean = (tl.sum(total, 1) / D)[:, None]
    head_x -= mean
    squares = head_x * head_x
    if TAIL > 0:
        tail_x = tl.where(tail < D, tail_x - mean, 0.0)
        squares = tl.sum(tl.reshape(squares, (ROWS, HEAD // TAIL, TAIL)), 1) + tail_x * tail_x
    if PDL:
        gdc_launch_dependents()
    inverse_sd = tl.rsqrt(tl.sum(squares, 1) / D + eps)[:, None]
    _output(
        head_x * inverse_sd, out_ptr, out_row + head, mul_ptr, m_row + head, add_ptr, a_row + head, valid,
        ONE, AFFINE, POLICY,
    )  # fmt: skip
    if TAIL > 0:
        _output(
            tail_x * inverse_sd, out_ptr, out_row + tail, mul_ptr, m_row + tail, add_ptr, a_row + tail, tail_valid,
            ONE, AFFINE, POLICY,
        )  # fmt: skip
