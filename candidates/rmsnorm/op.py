"""RMSNorm over the last dim, as vllm-omni's `RMSNorm.forward_native`: fp32 inside, one rounding at the end."""

import torch
from torch import Tensor

from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case


def native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(w * x * rsqrt(mean(x²) + eps)) in fp32 (fp64 for fp64 inputs), then x's dtype. x (..., D), weight (D,)."""
    acc = torch.promote_types(x.dtype, torch.float32)
    x_acc = x.to(acc)
    inverse_rms = torch.rsqrt(x_acc.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (weight.to(acc) * (x_acc * inverse_rms)).to(x.dtype)


def fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Contiguous, like x."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
