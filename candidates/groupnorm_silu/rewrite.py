"""GroupNorm+SiLU in plain PyTorch, for torch.compile: its reduction split in two stages; and padded, channels-last.

Inductor gives a group's mean and variance to few programs when N * groups is small (32 for one image). Here each
position's channels-of-a-group, or each run of a group, is reduced first, so the first stage has thousands of rows.
"""

import math

import torch
from torch import Tensor

from candidates.groupnorm_silu.op import PAD, replicate_padded
from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind

_TARGET_ROWS = 2048
"""First-stage rows over all groups: enough programs for any GPU, few enough for a cheap second stage."""


def _pieces(size: int, groups: int) -> int:
    """The divisor of `size` that splits it into about _TARGET_ROWS / groups pieces."""
    wanted = max(_TARGET_ROWS // groups, 1)
    return max(d for i in range(1, math.isqrt(size) + 1) if size % i == 0 for d in (i, size // i) if d <= wanted)


@candidate(
    op="groupnorm_silu", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE, name="two_stage"
)
def two_stage(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """x (N, C, ...): moments of pieces of the spatial dims, merged (Chan et al. 1979), then one pointwise pass."""
    if x.numel() == 0:
        return torch.empty_like(x)
    acc = torch.promote_types(x.dtype, torch.float32)
    n, channels, *spatial = x.shape
    size = math.prod(spatial)
    pieces = _pieces(size, n * groups)
    grouped = x.reshape(n, groups, channels // groups, pieces, size // pieces).to(acc)
    variance, mean = torch.var_mean(grouped, dim=(2, 4), correction=0, keepdim=True)
    group_mean = mean.mean(dim=3, keepdim=True)
    group_variance = (variance + (mean - group_mean).square()).mean(dim=3, keepdim=True)
    scale = weight.to(acc).view(1, groups, -1, 1, 1) * torch.rsqrt(group_variance + eps)
    y = (grouped - group_mean) * scale + bias.to(acc).view(1, groups, -1, 1, 1)
    return torch.nn.functional.silu(y).to(x.dtype).reshape(x.shape)


@candidate(
    op="groupnorm_silu",
    kind=Kind.REWRITE,
    provider=TORCH,
    kernels=(),
    contract=Contract.TOLERANCE,
    context=PAD,
    name="channels_last_pad",
)
def channels_last_pad(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """x (N, C, T, H, W): written in the layout that cuDNN's convolutions compute in; one rounding.

    Moments and all that follows are spelt out: in a model `group_norm` left standing would be taken for native's.
    """
    if x.numel() == 0:
        return replicate_padded(x).contiguous(memory_format=torch.channels_last_3d)
    acc = torch.promote_types(x.dtype, torch.float32)
    n, channels, *_ = x.shape
    variance, mean = torch.var_mean(x.reshape(n, groups, -1).to(acc), dim=2, correction=0, keepdim=True)
    scale = weight.to(acc).view(groups, -1) * torch.rsqrt(variance + eps)
    of_channel = (n, channels, 1, 1, 1)
    centred = x.to(acc) - mean.expand_as(scale).reshape(of_channel)
    y = torch.nn.functional.silu(centred * scale.reshape(of_channel) + bias.to(acc).view(-1, 1, 1, 1))
    return replicate_padded(y.to(x.dtype)).contiguous(memory_format=torch.channels_last_3d)
