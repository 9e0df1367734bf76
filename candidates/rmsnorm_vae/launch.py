"""RMSNormVAE on tensors: reads strides, plans, launches our Triton kernels. Imports only torch and Triton."""

import math
from functools import cache

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm_vae.kernels import (
    rmsnorm_vae_rows,
    rmsnorm_vae_silu_pad,
    rmsnorm_vae_silu_pad_rows,
    rmsnorm_vae_tile,
)
from candidates.rmsnorm_vae.plan import ceil_div, make_plan, make_rows_plan

_MOST_ROWS, _MOST_IMAGES = 1 << 30, 65535
"""The padded positions of an image are numbered in int32 where they are rows; images by a grid's second number."""
Five = tuple[int, int, int, int, int]


@cache
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _five(values: tuple[int, ...], filler: int) -> Five:
    """(N, C, T, H, W) from (N, C, H, W) or itself."""
    n, c, *spatial = values
    t, h, w = [filler] * (3 - len(spatial)) + spatial
    return n, c, t, h, w


def _strides(x: Tensor) -> Five:
    """Strides as (N, C, T, H, W); 0 for dims of size 1, whose strides mean nothing."""
    return _five(tuple(0 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)), 0)


def even_step(sizes: Five, strides: Five) -> int | None:
    """Distance in elements from one position to the next where that is one number, else None."""
    step, span = 1, 1
    for size, stride in zip(reversed(sizes[2:]), reversed(strides[2:]), strict=True):
        if size == 1:
            continue
        if span == 1:
            step = stride
        elif stride != step * span:
            return None
        span *= size
    return step


def _rows(*tensors: Tensor) -> bool:
    """Whether the positions of all tensors are rows of adjacent channels, one behind the other, of one dtype."""
    return all(x.movedim(1, -1).is_contiguous() and x.dtype is tensors[0].dtype for x in tensors)


def _far(*tensors: Tensor) -> bool:
    """Whether some tensor has elements 2^31 or more from the start of their image."""
    return any(
        sum((size - 1) * step for size, step in zip(x.shape[1:], x.stride()[1:], strict=True)) >= 1 << 31
        for x in tensors
    )


def _checked_sizes(x: Tensor) -> Five:
    if x.ndim not in (3, 4, 5):
        raise ValueError(f"x has {x.ndim} dims; these kernels take (N, C, W) to (N, C, T, H, W)")
    return _five(tuple(x.shape), 1)


def rmsnorm_vae(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """x / max(norm over dim 1, eps) * √C * gamma (+ bias), fp32 inside: x (N, C, ...) of any strides, gamma (C, ...).

    Returns a tensor with x's strides (dense ones in their order, where x has gaps).
    """
    out = empty_dense_like(x)
    if x.numel() == 0:
        return out
    sizes = _checked_sizes(x)
    images, channels, _, height, width = sizes
    positions = math.prod(sizes[2:])
    gamma = gamma.contiguous()
    bias = None if bias is None else bias.contiguous()
    if _rows(x, out):
        rows, by_rows = images * positions, make_rows_plan(channels)
        rmsnorm_vae_rows[(ceil_div(rows, by_rows.rows * by_rows.groups),)](
            x, gamma, gamma if bias is None else bias, out, math.sqrt(channels), eps, rows, channels,
            K=by_rows.pieces, CB=by_rows.piece, RB=by_rows.rows, G=by_rows.groups,
            CEVEN=channels == by_rows.pieces * by_rows.piece, BIAS=bias is not None, num_warps=by_rows.warps,
        )  # fmt: skip
        return out
    plan = make_plan(channels, images, positions, _sm_count(x.device))
    x_strides, out_strides = _strides(x), _strides(out)
    x_step, out_step = even_step(sizes, x_strides), even_step(sizes, out_strides)
    flat = x_step is not None and out_step is not None
    if x_step is not None and out_step is not None:
        x_strides, out_strides = (*x_strides[:2], 0, 0, x_step), (*out_strides[:2], 0, 0, out_step)
    tiles = ceil_div(positions, plan.positions)
    rmsnorm_vae_tile[(images * tiles,)](
        x, gamma, gamma if bias is None else bias, out, math.sqrt(channels), eps,
        tiles, channels, positions, height, width, *x_strides, *out_strides,
        K=plan.pieces, CB=plan.piece, BS=plan.positions, CEVEN=channels == plan.pieces * plan.piece, FLAT=flat,
        BIAS=bias is not None, num_warps=plan.warps,
    )  # fmt: skip
    return out


def padded_like(x: Tensor, front: int) -> Tensor:
    """Uninitialised (N, C, T + front, H + 2, W + 2), channels-last."""
    n, c, t, h, w = x.shape
    shape = (n, c, t + front, h + 2, w + 2)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)


def rmsnorm_vae_silu_padded(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, front: int, cache: Tensor | None
) -> Tensor:
    """SiLU(RMSNormVAE(x)) behind `front` frames, those of `cache` (N, C, front, H, W) or zeros, bordered by zeros.

    x (N, C, T, H, W); returns (N, C, T + front, H + 2, W + 2), what a causal 3x3x3 convolution reads, channels-last
    whatever x is: the layout that cuDNN's convolutions compute in, and copy to where they are given another.
    """
    out = padded_like(x, front)
    if out.numel() == 0:
        return out
    images, channels, _, height, width = x.shape
    frames, rows, row = out.shape[2:]
    given = x if cache is None else cache
    gamma = gamma.contiguous()
    bias = None if bias is None else bias.contiguous()
    if _rows(x, out, given) and frames * rows * row < _MOST_ROWS and images <= _MOST_IMAGES:
        by_rows = make_rows_plan(channels)
        normed, behind = (
            ceil_div(part * rows * row, by_rows.rows * by_rows.groups) for part in (frames - front, front)
        )
        rmsnorm_vae_silu_pad_rows[(normed + behind, images)](
            x, gamma, gamma if bias is None else bias, given, out, math.sqrt(channels), eps, normed,
            channels, frames - front, height, width, front,
            K=by_rows.pieces, CB=by_rows.piece, RB=by_rows.rows, G=by_rows.groups,
            CEVEN=channels == by_rows.pieces * by_rows.piece, BIAS=bias is not None, CACHE=cache is not None,
            ASM=x.device.type != "cpu", num_warps=by_rows.warps,
        )  # fmt: skip
        return out
    plan = make_plan(channels, images * frames * rows, row, _sm_count(x.device))
    tiles = ceil_div(row, plan.positions)
    rmsnorm_vae_silu_pad[(images * frames * rows * tiles,)](
        x, gamma, gamma if bias is None else bias, given, out,
        math.sqrt(channels), eps, tiles, channels, height, width, frames, front,
        *_strides(x), *_strides(given), *out.stride(),
        K=plan.pieces, CB=plan.piece, BS=plan.positions, CEVEN=channels == plan.pieces * plan.piece,
        BIAS=bias is not None, CACHE=cache is not None, ASM=x.device.type != "cpu",
        INDEX64=_far(x, out, given), num_warps=plan.warps,
    )  # fmt: skip
    return out
