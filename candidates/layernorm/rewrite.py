"""LayerNorm in plain PyTorch with both moments from one pass, for torch.compile.

Inductor computes the variance of a long row by Welford's running update, or looks at the row once more. Sums of the
deviations from the row's own first element, and of their squares, need one pass of cheap steps. Around zero instead of
that element, E[x²] - E[x]² loses all digits where the mean is large against the spread.
"""

import torch
from torch import Tensor

from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


def normalised(x: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last dim, in fp32 (fp64 for fp64 inputs)."""
    x_acc = x.to(torch.promote_types(x.dtype, torch.float32))
    deviation = x_acc - x_acc[..., :1]
    mean = deviation.mean(-1, keepdim=True)
    variance = (deviation.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return (deviation - mean) * torch.rsqrt(variance + eps)


@candidate(
    op="layernorm",
    kind=Kind.REWRITE,
    provider=TORCH,
    kernels=(),
    contract=Contract.TOLERANCE,
    name="shifted_moments",
)
def shifted_moments(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (..., D), weight and bias (D,)."""
    y = normalised(x, eps)
    if weight is not None and bias is not None:
        y = y * weight.to(y.dtype) + bias.to(y.dtype)
    return y.to(x.dtype)
