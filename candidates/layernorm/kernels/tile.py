"""Triton kernel for LayerNorm over the last dim, plain, affine or modulated, alone or after a gated residual add.

fp32 inside, one rounding per output. A row is held in registers as it was loaded, in chunks of a power of two columns:
D = 1536, 3072 or 5120 are whole numbers of chunks, so no lane idles and nothing is masked. Where D leaves a rest, the
last chunk is masked.

The statistics take one exchange between threads. Each thread finds the mean of its own elements and the sum of squares
around it, then threads merge these in pairs (Chan et al. 1979): as exact as two passes over the row, and never
E[x²] - mean², which cancels. A thread's count goes along, also where all are equal: Triton's interpreter folds one
element after the other, where merging counts as equal is wrong.
"""

import triton
import triton.language as tl


@triton.jit
def group_offset(b, s, s_b, s_g, TOKENS):
    """Element offset of the modulation row of token s of batch b; TOKENS tokens share one."""
    return tl.cast(b, tl.int64) * s_b + tl.cast(s // TOKENS, tl.int64) * s_g


@triton.jit
def row_offset(row, S, s_b, s_g, TOKENS, EVEN: tl.constexpr):
    """Element offset of what row b * S + s reads; with EVEN, rows are s_g apart, which costs no division."""
    if EVEN:
        offset = row.to(tl.int64) * s_g
    else:
        b = row // S
        offset = group_offset(b, row - b * S, s_b, s_g, TOKENS)
    return offset


@triton.jit
def _columns(i, CHUNK: tl.constexpr, VECTOR: tl.constexpr):
    """Columns of chunk i, as (1, threads, VECTOR)."""
    return i * CHUNK + tl.arange(0, CHUNK // VECTOR)[None, :, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]


@triton.jit
def _load(ptr, column, LAST: tl.constexpr, D: tl.constexpr, POLICY: tl.constexpr):
    """A chunk whose columns are below LAST; masked only where that is beyond the row."""
    mask = None if LAST <= D else column < D
    other = None if LAST <= D else 0.0
    return tl.load(ptr, mask=mask, other=other, eviction_policy=POLICY)


@triton.jit
def _store(ptr, value, column, LAST: tl.constexpr, D: tl.constexpr):
    """The same for a chunk of an output."""
    mask = None if LAST <= D else column < D
    tl.store(ptr, value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _merge(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Mean, sum of squared deviations and size of two sets, either of which may be empty, as of one."""
    n = n_a + n_b
    share = n_b / tl.maximum(n, 1.0)
    delta = mean_b - mean_a
    return tl.fma(delta, share, mean_a), tl.fma(delta * delta, n_a * share, m2_a + m2_b), n


@triton.jit
def _moments(
    chunks, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, VECTOR: tl.constexpr
):  # fmt: skip
    """Mean and sum of squared deviations of each row, from N chunks (ROWS, threads, VECTOR)."""
    THREADS: tl.constexpr = CHUNK // VECTOR
    total = chunks[0].to(tl.float32)
    for i in tl.static_range(1, N):
        total += chunks[i].to(tl.float32)
    total = tl.sum(total, 2)
    if D % CHUNK == 0:
        n = tl.full((ROWS, THREADS), N * VECTOR, tl.float32)
        mean = total * (1.0 / (N * VECTOR))
    else:
        start = (N - 1) * CHUNK + tl.arange(0, THREADS)[None, :] * VECTOR
        in_last = tl.minimum(tl.maximum(D - start, 0), VECTOR)
        n = tl.broadcast_to(((N - 1) * VECTOR + in_last).to(tl.float32), (ROWS, THREADS))
        mean = total / tl.maximum(n, 1.0)
    squares = tl.zeros((ROWS, THREADS, VECTOR), tl.float32)
    for i in tl.static_range(N):
        deviation = chunks[i].to(tl.float32) - mean[:, :, None]
        if (i + 1) * CHUNK > D:
            deviation = tl.where(_columns(i, CHUNK, VECTOR) < D, deviation, 0.0)
        squares += deviation * deviation
    mean, m2, _ = tl.reduce((mean, tl.sum(squares, 2), n), 1, _merge)
    return mean[:, None, None], m2[:, None, None]


@triton.jit(do_not_specialize=["rows", "S", "GATE_TOKENS", "MUL_TOKENS", "ADD_TOKENS"])
def layernorm_tile(
    x_ptr, residual_ptr, gate_ptr, mul_ptr, add_ptr, out_ptr, h_ptr, eps, rows, S,
    x_b, x_s, x_d, r_b, r_s, r_d, g_b, g_g, GATE_TOKENS, m_b, m_g, MUL_TOKENS, a_b, a_g, ADD_TOKENS,
    D: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr,
    SHARED: tl.constexpr, ONE: tl.constexpr, AFFINE: tl.constexpr, RESIDUAL: tl.constexpr, FIRST: tl.constexpr,
    POLICY: tl.constexpr,
):  # fmt: skip
    """ROWS of the B * S rows per program; out and h are contiguous. ONE is 1 for a modulation, 0 for an affine part.

    EVEN: in every tensor the distance of a row to the next is one number: x_s, r_s, g_g, m_g, a_g; x_d and r_d are 1.
    SHARED: all rows share one row of mul, add and gate. FIRST: the modulation is asked for together with the row, not
    after its statistics.
    """
    N: tl.constexpr = (D + CHUNK - 1) // CHUNK
    # The last program repeats the last row instead of masking: outputs are fresh, so writing twice changes nothing.
    # Rows are counted in 32 bits, for a division's sake, and elements in 64.
    row = tl.minimum(tl.program_id(0) * ROWS + tl.arange(0, ROWS), rows - 1)[:, None, None]
    x_ptr += row_offset(row, S, x_b, x_s, 1, EVEN)
    residual_ptr += row_offset(row, S, r_b, r_s, 1, EVEN)
    gate_ptr += row_offset(row, S, g_b, 0 if SHARED else g_g, GATE_TOKENS, EVEN or SHARED)
    mul_ptr += row_offset(row, S, m_b, 0 if SHARED else m_g, MUL_TOKENS, EVEN or SHARED)
    add_ptr += row_offset(row, S, a_b, 0 if SHARED else a_g, ADD_TOKENS, EVEN or SHARED)
    out_ptr += row_offset(row, S, 0, D, 1, True)
    h_ptr += row_offset(row, S, 0, D, 1, True)
    xs = ()
    residuals = ()
    gates = ()
    muls = ()
    adds = ()
    # everything is asked for before anything is used
    for i in tl.static_range(N):
        c = _columns(i, CHUNK, VECTOR)
        # a column of a transposed tensor may lie beyond 2^31
        spread = c if EVEN else c.to(tl.int64)
        xs = xs + (_load(x_ptr + spread * x_d, c, (i + 1) * CHUNK, D, ""),)  # noqa: RUF005 (Triton knows no unpacking)
        if RESIDUAL:
            residuals = residuals + (_load(residual_ptr + spread * r_d, c, (i + 1) * CHUNK, D, ""),)  # noqa: RUF005
    for i in tl.static_range(N):
        c = _columns(i, CHUNK, VECTOR)
        if RESIDUAL:
            gates = gates + (_load(gate_ptr + c, c, (i + 1) * CHUNK, D, POLICY),)  # noqa: RUF005
        if AFFINE and FIRST:
            muls = muls + (_load(mul_ptr + c, c, (i + 1) * CHUNK, D, POLICY),)  # noqa: RUF005
            adds = adds + (_load(add_ptr + c, c, (i + 1) * CHUNK, D, POLICY),)  # noqa: RUF005
    if RESIDUAL:
        hs = ()
        for i in tl.static_range(N):
            c = _columns(i, CHUNK, VECTOR)
            h = residuals[i].to(tl.float32) + xs[i].to(tl.float32) * gates[i].to(tl.float32)
            h = h.to(x_ptr.dtype.element_ty)
            _store(h_ptr + c, h, c, (i + 1) * CHUNK, D)
            hs = hs + (h,)  # noqa: RUF005
        xs = hs
    mean, m2 = _moments(xs, N, D, ROWS, CHUNK, VECTOR)
    inverse_sd = tl.rsqrt(m2 * (1.0 / D) + eps)
    for i in tl.static_range(N):
        c = _columns(i, CHUNK, VECTOR)
        y = (xs[i].to(tl.float32) - mean) * inverse_sd
        if AFFINE:
            if FIRST:
                mul, add = muls[i], adds[i]
            else:
                mul = _load(mul_ptr + c, c, (i + 1) * CHUNK, D, POLICY)
                add = _load(add_ptr + c, c, (i + 1) * CHUNK, D, POLICY)
            y = y * (ONE + mul.to(tl.float32)) + add.to(tl.float32)
        _store(out_ptr + c, y, c, (i + 1) * CHUNK, D)
