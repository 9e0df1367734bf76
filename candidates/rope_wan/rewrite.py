"""Rotary embedding in other plain PyTorch, for torch.compile.

Inductor has no complex arithmetic (each product is an aten kernel, with fp32 copies around it), and it writes an
interleaved stack element by element, choosing between two loads for each.
"""

import torch
from torch import Tensor

from candidates._providers.guards import all_of, dense_rows, dtypes
from candidates.rope_wan.problem import rotary_dim_of
from candidates.rope_wan.tables import Form, Pairs, beside_heads, halved
from harness.op import TORCH, Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind


def _is_complex(case: Case, device: Device) -> str | None:
    form = case.params["form"]
    return None if form == Form.COMPLEX else f"the {form} form is real already"


@candidate(op="rope_wan", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE, guard=_is_complex)
def real_form(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """The complex form in real arithmetic, on the same complex tables."""
    cos, sin = (beside_heads(table) for table in halved(cos, sin, pairs, width))
    acc = torch.promote_types(x.dtype, torch.float32)
    x1, x2 = x.to(acc).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2).to(x.dtype)


def _interleaved_whole(case: Case, device: Device) -> str | None:
    if case.params["pairs"] != Pairs.INTERLEAVED:
        return "takes interleaved pairs only"
    return None if rotary_dim_of(case) == case.dims["D"] else "takes a rotary dim of the whole head only"


@candidate(
    op="rope_wan", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE,
    guard=all_of(dtypes(Dtype.BF16), dense_rows, _interleaved_whole),
)  # fmt: skip
def packed_pairs(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Each pair of bf16 as one 32-bit word: one pointwise kernel without a choice of loads. bf16 x, whole heads."""
    if x.numel() == 0:
        return torch.empty_like(x)
    cos, sin = (beside_heads(table).float() for table in halved(cos, sin, pairs, width))
    words = x.view(torch.int32)
    x1 = (words << 16).view(torch.float32)
    x2 = (words & -65536).view(torch.float32)
    y1 = (x1 * cos - x2 * sin).to(torch.bfloat16).view(torch.int16).to(torch.int32) & 65535
    y2 = (x1 * sin + x2 * cos).to(torch.bfloat16).view(torch.int16).to(torch.int32) << 16
    return (y1 | y2).view(torch.bfloat16)
