"""Our own Triton kernels for AdaLayerNorm as candidates, alone and after a gated residual add."""

import torch
from torch import Tensor

from candidates._providers.guards import row_elements_at_most
from candidates.adalayernorm.op import VLLM_OMNI
from candidates.layernorm.inhouse import torch_cuda_order
from candidates.layernorm.launch import WIDEST, modulated_layernorm, residual_modulated_layernorm
from candidates.layernorm.launch_exact import exact_modulated_layernorm, exact_residual_modulated_layernorm
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


def residual_fake(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """The modulated norm and the new residual, both contiguous."""
    return (
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=row_elements_at_most(WIDEST),
)
def triton_adalayernorm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Rows held in registers, any strides; one rounding, so the same kernel serves both formulas."""
    return modulated_layernorm(x, scale, shift, eps)


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_exact",),
    contract=Contract.BIT_EXACT,
    guard=torch_cuda_order,
)
def triton_adalayernorm_exact(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """torch's own order of summation and every rounding of the formula, any strides."""
    return exact_modulated_layernorm(x, scale, shift, eps, round_steps=formula == VLLM_OMNI)


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=row_elements_at_most(WIDEST),
    context="residual_gate",
    fake=residual_fake,
)
def triton_residual_adalayernorm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """x and residual read once, the modulated norm and the new residual written once."""
    return residual_modulated_layernorm(x, scale, shift, eps, residual, gate)


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_exact",),
    contract=Contract.BIT_EXACT,
    guard=torch_cuda_order,
    context="residual_gate",
    fake=residual_fake,
)
def triton_residual_adalayernorm_exact(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in every rounding of the eager chain."""
    return exact_residual_modulated_layernorm(x, scale, shift, eps, formula == VLLM_OMNI, residual, gate)
