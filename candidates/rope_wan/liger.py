"""liger-kernel's rotary embedding in Triton: q and k together, in place, halves only."""

import torch
from torch import Tensor

from candidates._providers import liger
from candidates._providers.guards import all_of, contiguous
from candidates.rope_wan.tables import Width
from candidates.rope_wan.upstream import halves, same_for_heads
from harness.op import Args, candidate
from harness.schema.vocabulary import Contract, Kind


def _prepare(args: Args) -> Args:
    """Full-width tables (1 or B, S, R)."""
    cos, sin = args["cos"], args["sin"]
    if args["width"] == Width.HALF:
        cos, sin = (torch.cat((table, table), dim=-1) for table in (cos, sin))
    if cos.ndim == 2:
        cos, sin = cos[None], sin[None]
    return {"q": args["q"], "k": args["k"], "cos": cos.contiguous(), "sin": sin.contiguous()}


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_triton_rope",),
    contract=Contract.TOLERANCE,
    guard=all_of(halves, same_for_heads, contiguous),
    context="qk",
    prepare=_prepare,
    mutates=("q", "k"),
    returns=("q", "k"),
)
def rope_forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    """q (B, S, H, D) and k (B, S, H2, D), given as views with heads before tokens; arithmetic in the tables' dtype."""
    q_heads, k_heads = (y.view(y.shape).transpose(1, 2) for y in (q, k))
    liger.function("rope", "rope_forward")(q_heads, k_heads, cos, sin)
