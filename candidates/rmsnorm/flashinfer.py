"""flashinfer's RMSNorms in CUDA, compiled on first use: one rounding, programmatic dependent launch."""

import torch
from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import (
    all_of,
    dense_rows,
    half_precision,
    matrix,
    require_same_dtype,
    row_elements_at_most,
    spans_less_than,
)
from candidates.rmsnorm.guards import one_matrix, weighted
from candidates.rmsnorm.rounding import ONCE
from harness.op import Device, candidate
from harness.schema.case import Case, Layout
from harness.schema.vocabulary import Contract, Kind

_offsets = spans_less_than(1 << 32)


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"norm::RMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, one_matrix, _offsets),
)
def rmsnorm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D) as (rows, D), weight (D,) of x's dtype: one block per row."""
    require_same_dtype(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flashinfer.function("norm", "rmsnorm")(matrix(x), weight, eps, out=matrix(y))
    return y


def _tokens_and_heads(case: Case, device: Device) -> str | None:
    if case.layout is Layout.TRANSPOSED and case.shape[0] > 1:
        return f"a {case.layout} tensor of batch {case.shape[0]} is no (tokens, heads, D) tensor without a copy"
    return None


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"norm::QKRMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, dense_rows, _tokens_and_heads, row_elements_at_most(256), _offsets),
)
def qk_rmsnorm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., heads, D) as (tokens, heads, D), weight (D,) of x's dtype: one warp per row, for head-sized rows."""
    require_same_dtype(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads = (-1, *x.shape[-2:])
    flashinfer.function("norm", "rmsnorm")(x.view(heads), weight, eps, out=y.view(heads))
    return y


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"norm::FusedAddRMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, one_matrix, _offsets),
    context="residual_add",
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def fused_add_rmsnorm(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = ONCE) -> None:
    """x and residual (..., D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    flashinfer.function("norm", "fused_add_rmsnorm")(matrix(x), matrix(residual), weight, eps)
