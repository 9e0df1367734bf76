"""vllm's RMSNorms in CUDA, from its compiled library."""

import torch
from torch import Tensor

from candidates._providers import vllm
from candidates._providers.guards import (
    all_of,
    contiguous,
    dense_rows,
    matrix,
    require_same_dtype,
    spans_less_than,
)
from candidates.rmsnorm.guards import weighted
from candidates.rmsnorm.rounding import ONCE
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_offsets = spans_less_than(1 << 32)


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"vllm::rms_norm_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(dense_rows, weighted, _offsets),
)
def rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,) of x's dtype; one to three leading dims of any strides."""
    require_same_dtype(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    vllm.operator("rms_norm")(y, x, weight, eps)
    return y


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"vllm::fused_add_rms_norm_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(contiguous, weighted, _offsets),
    context="residual_add",
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def fused_add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = ONCE) -> None:
    """x and residual (..., D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    vllm.operator("fused_add_rms_norm")(matrix(x), matrix(residual), weight, eps)
