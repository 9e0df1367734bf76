"""How upstream kernels want their cos and sin, and q and k: one cache and positions into it, tokens without a batch.

A model makes its tables once a step and every layer reads them, so adapters turn them in their untimed `prepare`; the
names stay, so that contexts can hand them on.
"""

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Shapes, Table
from harness.op import Args, Device, Guard
from harness.schema.case import Case, Dtype, Layout

GROUPS = ("", "text_")
"""Prefixes of the arguments of one call of the op; the second is there in the joint context."""


def one_per_pair(values: Tensor, pairs: str, table: str) -> Tensor:
    """cos or sin (..., W) as (..., R/2). Raises ValueError for a full table, which has two values per pair."""
    if table == Table.FULL:
        raise ValueError("a full table has two values per pair")
    if table == Table.HALF:
        return values
    return values[..., ::2] if pairs == Pairs.INTERLEAVED else values[..., : values.shape[-1] // 2]


def positions_of(x: Tensor, table: Tensor) -> Tensor:
    """Row of the table for each token of x (B, S, H, D), (B * S,) int64: a batch may share its rows or have its own."""
    batch, tokens = x.shape[:2]
    rows = torch.arange(batch * tokens if table.ndim == 3 else tokens, device=x.device)
    return rows if table.ndim == 3 else rows.repeat(batch)


def cached(
    args: Args, dtype: torch.dtype | None = None, *, row_per_token: bool = False, spare_row: bool = False
) -> Args:
    """cos becomes the cache (rows, cos | sin), sin the positions that index it.

    `dtype` casts; `row_per_token` repeats shared rows for every batch; `spare_row` adds one that no position names,
    for kernels that read past the last.
    """
    changed = dict(args)
    for group in GROUPS:
        if f"{group}cos" not in args:
            continue
        cos, sin = args[f"{group}cos"], args[f"{group}sin"]
        if args["table"] != Table.FULL:
            cos, sin = (one_per_pair(values, args["pairs"], args["table"]) for values in (cos, sin))
        positions = positions_of(args[f"{group}q"], cos)
        cache = torch.cat((cos, sin), dim=-1).flatten(0, -2).to(dtype or cos.dtype)
        if row_per_token:
            cache, positions = cache[positions], torch.arange(positions.numel(), device=positions.device)
        if spare_row:
            cache = torch.cat((cache, cache.new_zeros(1, cache.shape[-1])))
        changed[f"{group}cos"], changed[f"{group}sin"] = cache, positions
    return changed


def tokens(x: Tensor) -> Tensor:
    """x (B, S, H, D) as (B * S, H, D). Raises RuntimeError when that would need a copy."""
    return x.view(-1, *x.shape[-2:])


def packed_qkv(q: Tensor, k: Tensor) -> Tensor | None:
    """The packed (B * S, q | k | v) that q and k (B, S, heads, D) are views of, or None when they are not.

    Of a single token, q | k alone.
    """
    batch, seq, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    width = (heads + kv_heads) * head_dim
    if batch * seq > 1:
        width = q.stride(1 if seq > 1 else 0)
    start = q.storage_offset()
    storage = q.untyped_storage()
    rest = width - (heads + kv_heads) * head_dim
    adjacent = (
        storage.data_ptr() == k.untyped_storage().data_ptr()
        and k.storage_offset() == start + heads * head_dim
        and (start + batch * seq * width) * q.element_size() <= storage.nbytes()
    )
    wanted = (seq * width, width, head_dim, 1)
    laid_out = all(
        stride == want
        for x in (q, k)
        for size, stride, want in zip(x.shape, x.stride(), wanted, strict=True)
        if size > 1
    )
    if not adjacent or not laid_out or rest < 0 or rest % head_dim:
        return None
    return q.as_strided((batch * seq, width), (width, 1), start)


def per_head(case: Case, device: Device) -> str | None:
    """Each head has its own norm."""
    return "norms each head by itself, the case all heads together" if case.params["across_heads"] else None


def one_value_per_pair(case: Case, device: Device) -> str | None:
    """No full tables."""
    return "reads one cos and one sin per pair, the table has two" if Shapes.of(case).table is Table.FULL else None


def tokens_in_one_run(case: Case, device: Device) -> str | None:
    """q and k can be seen as (tokens, heads, D) with dense heads without a copy."""
    if case.layout is Layout.CHANNELS_LAST or (case.layout is Layout.TRANSPOSED and case.dims["B"] > 1):
        return f"a {case.layout} tensor is no (tokens, heads, D) tensor without a copy"
    return None


def heads_in_one_run(case: Case, device: Device) -> str | None:
    """All heads of a token lie next to each other."""
    if case.layout in (Layout.CHANNELS_LAST, Layout.TRANSPOSED):
        return f"the heads of a token of a {case.layout} tensor are apart"
    return None


def pairs_are(wanted: Pairs) -> Guard:
    """One kind of pairs only."""

    def guard(case: Case, device: Device) -> str | None:
        return None if Shapes.of(case).pairs is wanted else f"rotates {wanted} pairs only"

    return guard


def head_dims(*allowed: int) -> Guard:
    """Some widths of a head only."""

    def guard(case: Case, device: Device) -> str | None:
        head_dim = case.dims["D"]
        return None if head_dim in allowed else f"D={head_dim}: takes {', '.join(map(str, allowed))}"

    return guard


def rotates_whole_heads(case: Case, device: Device) -> str | None:
    """R = D."""
    of = Shapes.of(case)
    return None if of.rotary_dim == of.head_dim else f"rotates whole heads only, not {of.rotary_dim} of {of.head_dim}"


def shares_tables(case: Case, device: Device) -> str | None:
    """One table for all batches."""
    return "takes one table for all batches" if case.params["per_batch"] and case.dims["B"] > 1 else None


def elements(case: Case) -> int:
    """Elements that q and k span together; with v where they are views of one packed qkv."""
    of = Shapes.of(case)
    heads = of.heads + of.kv_heads * (2 if case.layout is Layout.SLICED else 1)
    return of.batch * of.tokens * heads * of.head_dim


def reaches_less_than(limit: int) -> Guard:
    """Offsets into q and k fit the kernel's integers."""

    def guard(case: Case, device: Device) -> str | None:
        span = elements(case)
        return None if span < limit else f"32-bit offsets: {span:,} elements reach past {limit:,}"

    return guard


MOST_IN_PLACE_BYTES = 128 << 20


def in_place(case: Case, device: Device) -> str | None:
    """The clock gives a kernel that works in place a set of inputs per launch; many large sets do not fit."""
    of = Shapes.of(case)
    size = of.batch * of.tokens * (of.heads + of.kv_heads) * of.head_dim * case.dtype.bytes
    if size <= MOST_IN_PLACE_BYTES:
        return None
    return f"in place: {size >> 20} MiB of q and k for every launch are more than {MOST_IN_PLACE_BYTES >> 20}"


def table_dtype(*allowed: Dtype) -> Guard:
    """Tables of one of these dtypes."""

    def guard(case: Case, device: Device) -> str | None:
        dtype = Dtype(str(case.params["table_dtype"]))
        return None if dtype in allowed else f"takes {', '.join(allowed)} tables only, the case has {dtype}"

    return guard
