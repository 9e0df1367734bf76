"""Triton kernels for all-reduce + residual add + RMSNorm over peer buffers: every rank writes into the others' memory.

One shot: each rank pushes its rows to all others, meets them once, then sums all parts of all rows. Two shots: each
rank owns a chunk of rows; it gets the others' parts of them, sums, pushes the sums to all, and the norm is taken from
those. Sums are in rank order, in fp32, rounded to x's dtype as the process group's all-reduce hands them on: all ranks
get the same bits, and both kernels the same ones.

Launches need no reset, so a CUDA graph can replay them. The number of the launch (epoch) lies in device memory and is
raised by the last program of a launch. A program meets the programs of its own number on the other ranks: it writes
the epoch into its flag at each of them (release, after its stores) and waits until theirs have come to it (acquire).
Data go into one half of the buffer in odd launches, into the other in even ones: whoever writes to a half again has
met everybody in the launch between, hence nobody still reads it. `tests/candidates/test_allreduce_protocol.py` holds a
model of this.

All programs of a launch must be on the GPU at once, on every rank: `launch.py` sees to that, and that all ranks launch
as many. Spinning is on a flag in the rank's own memory.
"""

import triton
import triton.language as tl

from candidates.rmsnorm.kernels import _rounded, _weighted


@triton.jit
def _data(bases_ptr, peer, offset, dtype: tl.constexpr):
    """Pointer to elements of `dtype`, `offset` bytes into the buffer of rank `peer`."""
    address = tl.load(bases_ptr + peer) + offset
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)


@triton.jit
def _meet(bases_ptr, place, rank, epoch, RANKS: tl.constexpr):
    """Return when program `place` of every rank has got here in this epoch, with what it stored before visible."""
    tl.debug_barrier()  # every thread's stores before the one thread's release
    for peer in tl.static_range(RANKS):
        if peer != rank:
            flag = _data(bases_ptr, peer, 0, tl.int32) + place * RANKS + rank
            tl.atomic_xchg(flag, epoch, sem="release", scope="sys")
    mine = _data(bases_ptr, rank, 0, tl.int32) + place * RANKS
    for peer in tl.static_range(RANKS):
        if peer != rank:
            seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
            # a peer may be one launch ahead, so not `!=`; the difference survives the counter's wrap
            while seen - epoch < 0:
                seen = tl.atomic_add(mine + peer, 0, sem="acquire", scope="sys")
    tl.debug_barrier()  # the one thread's acquire before every thread's loads


@triton.jit
def _leave(state_ptr, epoch):
    """The last program to leave raises the epoch for the next launch."""
    left = tl.atomic_add(state_ptr + 1, 1, sem="acq_rel", scope="gpu")
    if left == tl.num_programs(0) - 1:
        tl.store(state_ptr + 1, 0)
        tl.store(state_ptr, epoch)


@triton.jit
def _sum_in_rank_order(
    x_row_ptr, parts_ptr, part, rank, column, mask, dtype: tl.constexpr, RANKS: tl.constexpr, EMULATE: tl.constexpr
):
    """Sum of one row over the ranks: this rank's from x, rank r's from parts + r * part. fp32, rounded to `dtype`."""
    total = tl.zeros(column.shape, tl.float32)
    for peer in tl.static_range(RANKS):
        source = tl.where(peer == rank, x_row_ptr, parts_ptr + peer * part)
        # past the first-level cache, which does not see what peers write
        value = tl.load(source + column, mask=mask, other=0.0, cache_modifier=".cg")
        total += value.to(tl.float32)
    return _rounded(total, dtype, EMULATE)


@triton.jit
def _add_and_norm(
    total, residual, weight, out_ptr, h_ptr, offset, column, mask, eps, D,
    dtype: tl.constexpr, RESIDUAL: tl.constexpr, ROUND_FIRST: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """h = total + residual and its RMSNorm for one row, both stored `offset` elements in."""
    h = total
    if RESIDUAL:
        h = _rounded(total + residual.to(tl.float32), dtype, EMULATE)
    tl.store(h_ptr + offset + column, h.to(dtype), mask=mask)
    inverse_rms = tl.rsqrt(tl.sum(h * h, 0) / D + eps)
    y = _weighted(h * inverse_rms, weight, dtype, ROUND_FIRST, EMULATE)
    tl.store(out_ptr + offset + column, y.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["rows", "rank"])
def allreduce_rmsnorm_one_shot(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, bases_ptr, state_ptr, eps, rows, D, x_row, rank, flag_bytes,
    half_bytes, RANKS: tl.constexpr, BLOCK: tl.constexpr, RESIDUAL: tl.constexpr, ROUND_FIRST: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    """Rows program, program + programs, ...; a half of the buffer holds (RANKS, rows, D)."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    first = tl.program_id(0)
    epoch = tl.load(state_ptr) + 1
    half = flag_bytes + (epoch & 1).to(tl.int64) * half_bytes
    column = tl.arange(0, BLOCK)
    in_row = column < D
    part = rows.to(tl.int64) * D
    row = first
    while row < rows:
        x = tl.load(x_ptr + row.to(tl.int64) * x_row + column, mask=in_row, other=0.0)
        for peer in tl.static_range(RANKS):
            if peer != rank:
                theirs = _data(bases_ptr, peer, half, dtype) + rank * part + row.to(tl.int64) * D
                tl.store(theirs + column, x, mask=in_row)
        row += tl.num_programs(0)
    # what nobody sends is asked for before the wait
    weight = tl.load(weight_ptr + column, mask=in_row, other=0.0).to(tl.float32)
    residual = weight
    if RESIDUAL:
        residual = tl.load(residual_ptr + first.to(tl.int64) * D + column, mask=in_row, other=0.0).to(tl.float32)
    _meet(bases_ptr, first, rank, epoch, RANKS)
    mine = _data(bases_ptr, rank, half, dtype)
    row = first
    while row < rows:
        offset = row.to(tl.int64) * D
        x_row_ptr = x_ptr + row.to(tl.int64) * x_row
        total = _sum_in_rank_order(x_row_ptr, mine + offset, part, rank, column, in_row, dtype, RANKS, EMULATE)
        _add_and_norm(
            total, residual, weight, out_ptr, h_ptr, offset, column, in_row, eps, D,
            dtype, RESIDUAL, ROUND_FIRST, EMULATE,
        )  # fmt: skip
        row += tl.num_programs(0)
        if RESIDUAL:
            following = residual_ptr + row.to(tl.int64) * D
            residual = tl.load(following + column, mask=in_row & (row < rows), other=0.0).to(tl.float32)
    _leave(state_ptr, epoch)


@triton.jit(do_not_specialize=["rows", "rank"])
def allreduce_rmsnorm_two_shot(
    x_ptr, residual_ptr, weight_ptr, out_ptr, h_ptr, bases_ptr, state_ptr, eps, rows, D, x_row, rank, flag_bytes,
    half_bytes, RANKS: tl.constexpr, BLOCK: tl.constexpr, RESIDUAL: tl.constexpr, ROUND_FIRST: tl.constexpr,
    EMULATE: tl.constexpr,
):  # fmt: skip
    """Rank r owns rows r * chunk + [0, chunk); a half of the buffer holds parts (RANKS, chunk, D), then sums (rows, D).

    A program takes rows program, program + programs, ... of every rank's chunk, in all three passes the same ones.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    first = tl.program_id(0)
    epoch = tl.load(state_ptr) + 1
    half = flag_bytes + (epoch & 1).to(tl.int64) * half_bytes
    column = tl.arange(0, BLOCK)
    in_row = column < D
    chunk = tl.cdiv(rows, RANKS)
    part = chunk.to(tl.int64) * D
    i = first
    while i < chunk:
        for owner in range(RANKS):
            row = owner * chunk + i
            mask = in_row & (row < rows) & (owner != rank)
            x = tl.load(x_ptr + row.to(tl.int64) * x_row + column, mask=mask, other=0.0)
            theirs = _data(bases_ptr, owner, half, dtype) + rank * part + i.to(tl.int64) * D
            tl.store(theirs + column, x, mask=mask)
        i += tl.num_programs(0)
    _meet(bases_ptr, first, rank, epoch, RANKS)
    mine = _data(bases_ptr, rank, half, dtype)
    i = first
    while i < chunk:
        row = rank * chunk + i
        mask = in_row & (row < rows)
        x_row_ptr = x_ptr + row.to(tl.int64) * x_row
        parts = mine + i.to(tl.int64) * D
        total = _sum_in_rank_order(x_row_ptr, parts, part, rank, column, mask, dtype, RANKS, EMULATE)
        for peer in tl.static_range(RANKS):
            sums = _data(bases_ptr, peer, half, dtype) + RANKS * part + row.to(tl.int64) * D
            tl.store(sums + column, total.to(dtype), mask=mask)
        i += tl.num_programs(0)
    weight = tl.load(weight_ptr + column, mask=in_row, other=0.0).to(tl.float32)
    _meet(bases_ptr, tl.num_programs(0) + first, rank, epoch, RANKS)
    i = first
    while i < chunk:
        for owner in range(RANKS):
            row = owner * chunk + i
            mask = in_row & (row < rows)
            offset = row.to(tl.int64) * D
            sums = mine + RANKS * part + offset
            total = tl.load(sums + column, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)
            residual = weight
            if RESIDUAL:
                residual = tl.load(residual_ptr + offset + column, mask=mask, other=0.0)
            _add_and_norm(
                total, residual, weight, out_ptr, h_ptr, offset, column, mask, eps, D,
                dtype, RESIDUAL, ROUND_FIRST, EMULATE,
            )  # fmt: skip
        i += tl.num_programs(0)
    _leave(state_ptr, epoch)
