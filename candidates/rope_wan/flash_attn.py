"""flash-attention's rotary embedding in Triton, which vllm carries a copy of."""

import torch
from torch import Tensor

from candidates._providers import flash_attn
from candidates._providers.guards import all_of, dense_rows, row_elements_at_most, spans_less_than
from candidates.rope_wan.tables import Pairs, halved, rows
from candidates.rope_wan.upstream import one_token_axis, same_for_heads, tokens
from harness.op import Args, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_BLOCK_TOKENS = 4
_GRID_LIMIT = 65535


def _grid(case: Case, device: Device) -> str | None:
    count = case.dims["B"] * case.dims["S"]
    return None if count <= _GRID_LIMIT * _BLOCK_TOKENS else f"{count} tokens are past CUDA's limit for a grid's y"


def _prepare(args: Args) -> Args:
    """Half-width (S, R/2) tables, or (B * S, R/2) where they differ by batch."""
    cos, sin = (rows(table, 1) for table in halved(args["cos"], args["sin"], args["pairs"], args["width"]))
    return {"x": args["x"], "cos": cos, "sin": sin, "interleaved": args["pairs"] == Pairs.INTERLEAVED}


def _like_x(x: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(x)


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=flash_attn.PROVIDER,
    kernels=("rotary_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        dense_rows, one_token_axis, same_for_heads, row_elements_at_most(256), spans_less_than(1 << 31), _grid
    ),
    prepare=_prepare,
    fake=_like_x,
)
def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (B, S, H, D); tables that differ by batch are rows of one long sequence, and so is x then."""
    run = flash_attn.rotary("apply_rotary")
    if cos.shape[0] == x.shape[1]:
        y: Tensor = run(x, cos, sin, interleaved=interleaved)
        return y
    y = run(tokens(x)[None], cos, sin, interleaved=interleaved)
    return y.view(x.shape)
