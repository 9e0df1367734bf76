"""Our own Triton kernels for RMSNorm, alone and after a residual add, as candidates."""

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm.launch import residual_rmsnorm, rmsnorm
from candidates.rmsnorm.rounding import ONCE
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_(tile|long)",),
    contract=Contract.TOLERANCE,
)
def triton_rmsnorm(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """Rows held in registers, any strides."""
    return rmsnorm(x, weight, eps, rounding)


def _residual_fake(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), empty_dense_like(x)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_(tile|long)",),
    contract=Contract.TOLERANCE,
    context="residual_add",
    fake=_residual_fake,
)
def triton_residual_rmsnorm(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x and residual read once, the normed sum and the sum written once."""
    return residual_rmsnorm(x, weight, eps, residual, rounding)
