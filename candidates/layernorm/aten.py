"""PyTorch's own LayerNorm kernel on 16-bit tensors, called eagerly: fp32 inside, without native's casts around it."""

import torch.nn.functional as F
from torch import Tensor

from candidates._providers.guards import all_of, on_gpu
from harness.op import TORCH, Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind


def _one_dtype(case: Case, device: Device) -> str | None:
    if case.params["weights"] == "float32" and case.dtype is not Dtype.FP32:
        return f"takes weights of the activation's dtype, the case has float32 beside {case.dtype}"
    return None


@candidate(
    op="layernorm",
    kind=Kind.CUDA,
    provider=TORCH,
    kernels=("vectorized_layer_norm_kernel|LayerNormForwardCUDAKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(on_gpu, _one_dtype),
)
def native_layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (..., D), weight and bias (D,). aten copies an x that is not contiguous, as here; that copy is timed."""
    return F.layer_norm(x.contiguous(), x.shape[-1:], weight, bias, eps)
