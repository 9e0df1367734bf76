"""RMSNormVAE in plain PyTorch, its steps merged, for torch.compile."""

import math

import torch
from torch import Tensor

from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="rmsnorm_vae", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE, name="one_scale"
)
def one_scale(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """One factor √C / norm per position from a fp32 sum of squares, no division per element, one rounding."""
    acc = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(acc)
    norm = wide.square().sum(dim=1, keepdim=True).sqrt()
    y = wide * (math.sqrt(x.shape[1]) / norm.clamp_min(eps)) * gamma.to(acc)
    return (y if bias is None else y + bias.to(acc)).to(x.dtype)
