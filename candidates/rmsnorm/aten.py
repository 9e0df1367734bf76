"""PyTorch's own fused RMSNorm, `torch.nn.functional.rms_norm`, called eagerly."""

import torch.nn.functional as F
from torch import Tensor

from candidates._providers.guards import on_gpu
from candidates.rmsnorm.rounding import ONCE
from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=TORCH,
    kernels=("vectorized_layer_norm_kernel|LayerNormForwardCUDAKernel",),
    contract=Contract.TOLERANCE,
    guard=on_gpu,
)
def fused_rms_norm(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,). aten copies an x that is not contiguous, as here; that copy is timed. Rounds once."""
    return F.rms_norm(x.contiguous(), (x.shape[-1],), weight, eps)
