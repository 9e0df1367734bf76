"""sgl_kernel's RMSNorms in CUDA: an earlier flashinfer's, compiled ahead; programmatic dependent launch."""

import torch
from torch import Tensor

from candidates._providers import sgl_kernel
from candidates._providers.guards import (
    all_of,
    contiguous,
    half_precision,
    matrix,
    require_same_dtype,
    spans_less_than,
)
from candidates.rmsnorm.guards import one_matrix, weighted
from candidates.rmsnorm.rounding import ONCE
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_ENABLE_PDL = True
"""As its Python functions have it from Hopper on."""
_offsets = spans_less_than(1 << 32)


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=sgl_kernel.PROVIDER,
    kernels=(r"norm::RMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, one_matrix, _offsets),
)
def rmsnorm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D) as (rows, D), weight (D,) of x's dtype: one block per row."""
    require_same_dtype(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sgl_kernel.operator("rmsnorm")(matrix(y), matrix(x), weight, eps, _ENABLE_PDL)
    return y


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=sgl_kernel.PROVIDER,
    kernels=(r"norm::FusedAddRMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, contiguous, _offsets),
    context="residual_add",
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def fused_add_rmsnorm(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = ONCE) -> None:
    """x and residual (..., D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    sgl_kernel.operator("fused_add_rmsnorm")(matrix(x), matrix(residual), weight, eps, _ENABLE_PDL)
