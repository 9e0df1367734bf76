"""Our own Triton kernel for rotary embedding, alone and writing where the neighbours want it, as candidates."""

import torch
from torch import Tensor

from candidates.rope_wan import launch
from candidates.rope_wan.problem import ULYSSES_RANKS
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(op="rope_wan", kind=Kind.TRITON, provider=INHOUSE, kernels=("rope_tile",), contract=Contract.TOLERANCE)
def triton_rope(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Any strides, any form of the tables, read as they are."""
    return launch.rope(x, cos, sin, form, pairs, width)


def _both(q: Tensor, k: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(k.shape, dtype=k.dtype, device=k.device)


@candidate(
    op="rope_wan", kind=Kind.TRITON, provider=INHOUSE, kernels=("rope_tile",), contract=Contract.TOLERANCE,
    context="qk", fake=_both,
)  # fmt: skip
def triton_rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str
) -> tuple[Tensor, Tensor]:
    """q and k in one launch."""
    return launch.rope_qk(q, k, cos, sin, form, pairs, width)


def _joined(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str, text: Tensor,
            *rest: object) -> Tensor:  # fmt: skip
    B, S, H, D = x.shape
    return torch.empty((B, text.shape[1] + S, H, D), dtype=x.dtype, device=x.device)


@candidate(
    op="rope_wan", kind=Kind.TRITON, provider=INHOUSE, kernels=("rope_tile",), contract=Contract.TOLERANCE,
    context="joint", fake=_joined,
)  # fmt: skip
def triton_rope_joint(
    x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str,
    text: Tensor, cos_text: Tensor, sin_text: Tensor | None,
) -> Tensor:  # fmt: skip
    """Text and image tokens written into the joined tensor, a launch each."""
    return launch.rope_joint(x, cos, sin, text, cos_text, sin_text, form, pairs, width)


def _packed(x: Tensor, *rest: object) -> Tensor:
    B, S, H, D = x.shape
    return torch.empty((ULYSSES_RANKS, S, B, H // ULYSSES_RANKS, D), dtype=x.dtype, device=x.device)


@candidate(
    op="rope_wan", kind=Kind.TRITON, provider=INHOUSE, kernels=("rope_tile",), contract=Contract.TOLERANCE,
    context="ulysses", fake=_packed,
)  # fmt: skip
def triton_rope_packed(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Written where the all-to-all wants it."""
    return launch.rope_packed(x, cos, sin, form, pairs, width, ULYSSES_RANKS)
