"""Our LayerNorm kernels, which modulate in the same pass: the contexts in one kernel."""

import torch
from torch import Tensor

from candidates._providers.guards import all_of, row_elements_at_most
from candidates.adaln_modulation.guards import PER_BATCH, forms, tables
from candidates.adaln_modulation.op import LAYERNORM_EPS, Form, Per
from candidates.layernorm.launch import WIDEST, modulated_layernorm, residual_modulated_layernorm
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind

_tables = all_of(tables(*PER_BATCH, Per.FRAME, Per.TOKEN), row_elements_at_most(WIDEST))


def _contiguous_like(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=all_of(forms(Form.SCALE_SHIFT), _tables),
    context="layernorm",
    fake=_contiguous_like,
)
def triton_layernorm_modulation(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """Norm and modulation over rows in registers, one rounding."""
    assert shift is not None
    return modulated_layernorm(x, scale, shift, LAYERNORM_EPS)


def _two_contiguous_like(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool, next_scale: Tensor, next_shift: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=all_of(forms(Form.GATE), _tables),
    context="gate_layernorm",
    fake=_two_contiguous_like,
)
def triton_gate_layernorm_modulation(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool, next_scale: Tensor, next_shift: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gate, norm and modulation over rows in registers, one rounding each of h and the output."""
    assert residual is not None
    return residual_modulated_layernorm(x, next_scale, next_shift, LAYERNORM_EPS, residual, scale)
