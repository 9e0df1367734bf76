"""GroupNorm+SiLU up to the padded input of a causal 3x3x3 convolution: plans and launches our Triton kernels."""

import torch
from torch import Tensor

from candidates.groupnorm_silu.kernels.padded import groupnorm_silu_padded_apply
from candidates.groupnorm_silu.launch import (
    device_limits,
    flat_statistics,
    geometry_of,
    merged,
    rows_statistics,
    single_instructions,
)
from candidates.groupnorm_silu.op import CAUSAL_FRAMES
from candidates.groupnorm_silu.plan import Path, ceil_div, make_padded_plan


def padded_like(x: Tensor) -> Tensor:
    """Empty: two frames more in front than x (N, C, T, H, W) and one position more on each side, channels-last."""
    n, c, t, h, w = x.shape
    shape = (n, c, t + CAUSAL_FRAMES, h + 2, w + 2)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)


def groupnorm_silu_padded(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """SiLU(GroupNorm(x)) with its borders repeated: x (N, C, T, H, W) in bf16, fp16 or fp32 and any strides, weight and
    bias (C,); fp32 inside.

    Returns (N, C, T + 2, H + 2, W + 2), channels-last whatever x is: the layout that cuDNN's convolutions compute in,
    and copy to where they are given another. Forward only. Raises ValueError where there is no position to repeat.
    """
    out = padded_like(x)
    if out.numel() == 0:
        return out
    if x.numel() == 0:
        raise ValueError(f"x {tuple(x.shape)} has no position that its borders could repeat")
    # before the statistics: the last kernel may read the bias while what was launched just before it still runs
    weight, bias = weight.contiguous(), bias.contiguous()
    geometry = geometry_of(x, x, groups)
    sm_count, pdl = device_limits(x.device)
    plan = make_padded_plan(geometry, sm_count)
    statistics = rows_statistics if plan.path is Path.ROWS else flat_statistics
    channel = merged(statistics(x, geometry, plan, pdl), weight, eps, geometry, plan, pdl)
    images, channels, frames, height, width = geometry.sizes
    columns = plan.apply_block // plan.span
    tiles, blocks = ceil_div(width, plan.span), ceil_div(channels, columns)
    groupnorm_silu_padded_apply[(images * frames * height * tiles * blocks,)](
        x, bias, out, channel, tiles, blocks, images * channels, channels, frames, height, width,
        *x.stride(),
        FRONT=CAUSAL_FRAMES, BW=plan.span, BC=columns, ASM=single_instructions(x), PDL=pdl,
        num_warps=plan.apply_warps, launch_pdl=pdl,
    )  # fmt: skip
    return out
