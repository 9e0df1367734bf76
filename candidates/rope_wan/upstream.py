"""What upstream's rotary kernels share: conditions, as guards with reasons, and the views and tables they take."""

import torch
from torch import Tensor

from candidates.rope_wan.problem import rotary_dim_of
from candidates.rope_wan.tables import Pairs, Positions, halved
from harness.op import Args, Device
from harness.schema.case import Case, Layout


def interleaved(case: Case, device: Device) -> str | None:
    """Pairs lie side by side."""
    return None if case.params["pairs"] == Pairs.INTERLEAVED else "rotates adjacent pairs only"


def halves(case: Case, device: Device) -> str | None:
    """Pairs are half of the rotary dim apart."""
    return None if case.params["pairs"] == Pairs.HALVES else "rotates halves only"


def whole_heads(case: Case, device: Device) -> str | None:
    """The rotary dim is the head's."""
    rotary_dim, D = rotary_dim_of(case), case.dims["D"]
    return None if rotary_dim == D else f"rotates whole heads only, the rotary dim is {rotary_dim} of {D}"


def same_for_heads(case: Case, device: Device) -> str | None:
    """All heads of a token have the same cos and sin."""
    return (
        None if case.params["positions"] != Positions.PER_HEAD else "takes one row of tables for all heads of a token"
    )


def one_token_axis(case: Case, device: Device) -> str | None:
    """x can be seen as (B * S, H, D) with dense heads, without a copy."""
    if case.layout is Layout.CHANNELS_LAST or (case.layout is Layout.TRANSPOSED and case.dims["B"] > 1):
        return f"a {case.layout} tensor is no (tokens, heads, D) tensor without a copy"
    return None


def token_rows(case: Case, device: Device) -> str | None:
    """x can be seen as (B * S, H * D), without a copy."""
    if case.layout in (Layout.CHANNELS_LAST, Layout.TRANSPOSED):
        return f"a {case.layout} tensor is no (tokens, heads * D) matrix without a copy"
    return None


def as_many_kv_heads(case: Case, device: Device) -> str | None:
    """k has q's heads."""
    ratio = case.params["heads_per_kv"]
    return None if ratio == 1 else f"takes q and k of one shape, q has {ratio} times k's heads"


def tokens(x: Tensor) -> Tensor:
    """x (B, S, H, D) seen as (B * S, H, D). Raises RuntimeError when that would need a copy."""
    return x.view(-1, *x.shape[-2:])


def cache_of(args: Args, dtype: torch.dtype | None = None, *, spare_row: bool = False) -> tuple[Tensor, Tensor]:
    """cos beside sin, (rows, R), and the int64 row of each token, for kernels that look positions up.

    One row for each position; one for each token of each sequence where they differ by batch. `dtype` defaults to the
    tables' own. `spare_row` adds one that no position names, for kernels that read past the end of a row.
    """
    x = args["q"] if "q" in args else args["x"]
    B, S = x.shape[:2]
    cos, sin = halved(args["cos"], args["sin"], args["pairs"], args["width"])
    cache = torch.cat((cos, sin), dim=-1).to(dtype or cos.dtype)
    positions = torch.arange(S if cache.ndim == 2 else B * S, device=x.device)
    rows = cache.reshape(-1, cache.shape[-1])
    if spare_row:
        rows = torch.cat((rows, rows.new_zeros(1, rows.shape[-1])))
    return rows, positions.repeat(B) if cache.ndim == 2 else positions
