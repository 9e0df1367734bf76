"""GroupNorm followed by SiLU, the pair in front of every convolution of an SD-family VAE's residual blocks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._dense import empty_dense_like
from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case, Layout

CAUSAL_FRAMES = 2
"""Frames in front that a causal 3x3x3 convolution reads: the first one, repeated."""
PADDING = (1, 1, 1, 1, CAUSAL_FRAMES, 0)
"""What it pads, in the order of `F.pad`."""
PAD = "pad"
"""The context up to that convolution's input."""


def native(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """SiLU(GroupNorm(x)), as diffusers' residual blocks write it. x (N, C, ...), weight (C,), bias (C,)."""
    return F.silu(F.group_norm(x, groups, weight, bias, eps))


def fake(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """Like x, strides included: channels-last in, channels-last out."""
    return empty_dense_like(x)


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout; weight about 1 and bias about 0, as in trained checkpoints."""
    channels = (case.dims["C"],)
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "weight": draw.weight("weight", channels, loc=1.0, scale=0.2),
        "bias": draw.weight("bias", channels, scale=0.2),
        "groups": case.params["groups"],
        "eps": case.params["eps"],
    }


def bytes_moved(case: Case) -> int:
    """x once in, y once out, weight and bias."""
    return (2 * case.numel + 2 * case.dims["C"]) * case.dtype.bytes


def floor_bytes(case: Case) -> int:
    """x in twice, for the statistics and to be normalised, y once out, weight and bias."""
    return bytes_moved(case) + case.numel * case.dtype.bytes


def check(case: Case) -> str | None:
    """Channels must divide into groups, and channels-last needs spatial dims."""
    channels, groups = case.dims["C"], case.params["groups"]
    if not isinstance(groups, int) or groups < 1 or channels % groups:
        return f"C={channels} does not divide into groups={groups}"
    if len(case.dims) == 2 and case.layout is Layout.CHANNELS_LAST:
        return f"layout {case.layout} needs spatial dims, and (N, C) has none"
    if PAD in case.contexts and "T" not in case.dims:
        return f"context {PAD} pads a causal 3-D convolution's input, and there is no T"
    return None


def replicate_padded(x: Tensor) -> Tensor:
    """x (N, C, T, H, W) with its borders repeated, as HunyuanVideoCausalConv3d pads: no future frame."""
    return F.pad(x, PADDING, mode="replicate")


def _with_pad(impl: Impl) -> Impl:
    def groupnorm_silu_pad(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        return replicate_padded(impl(x=x, weight=weight, bias=bias, groups=groups, eps=eps))

    return groupnorm_silu_pad


def _pad_bytes(case: Case) -> int:
    dims = case.dims
    padded = dims["N"] * dims["C"] * (dims["T"] + CAUSAL_FRAMES) * (dims["H"] + 2) * (dims["W"] + 2)
    return (case.numel + padded + 2 * dims["C"]) * case.dtype.bytes


def _conv_inputs(case: Case, draw: Draw) -> Args:
    args = inputs(case, draw)
    channels, spatial_dims = case.dims["C"], len(case.dims) - 2
    kernel = (3,) * spatial_dims
    fan_in = channels * 3**spatial_dims
    weight = draw.weight("conv_weight", (channels, channels, *kernel), scale=fan_in**-0.5)
    # as torch.compile lays out a VAE's weights: those of 2-D convolutions channels-last, of 3-D ones as they are
    return args | {
        "conv_weight": weight.contiguous(memory_format=torch.channels_last) if spatial_dims == 2 else weight,
        "conv_bias": draw.weight("conv_bias", (channels,), scale=0.2),
    }


def _with_conv(impl: Impl) -> Impl:
    def groupnorm_silu_conv(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, conv_weight: Tensor, conv_bias: Tensor
    ) -> Tensor:
        y = impl(x=x, weight=weight, bias=bias, groups=groups, eps=eps)
        if x.ndim == 4:
            return F.conv2d(y, conv_weight, conv_bias, padding=1)
        return F.conv3d(replicate_padded(y), conv_weight, conv_bias)

    return groupnorm_silu_conv


def _conv_bytes(case: Case) -> int:
    channels, spatial_dims = case.dims["C"], len(case.dims) - 2
    conv_elements = channels * channels * math.prod((3,) * spatial_dims) + channels
    return bytes_moved(case) + conv_elements * case.dtype.bytes


OP = Op(
    id="groupnorm_silu",
    dims=(("N", "C"), ("N", "C", "H", "W"), ("N", "C", "T", "H", "W")),
    params={"groups": int, "eps": float},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    floor_bytes=floor_bytes,
    check=check,
    contexts=(
        Context(
            id=PAD,
            what="GroupNorm + SiLU -> repeated borders: the input of the causal 3x3x3 convolution",
            inputs=inputs,
            compose=_with_pad,
            bytes_moved=_pad_bytes,
        ),
        Context(
            id="conv",
            what="GroupNorm + SiLU -> 3x3 (causal 3x3x3) C->C convolution, its time in every arm",
            inputs=_conv_inputs,
            compose=_with_conv,
            bytes_moved=_conv_bytes,
        ),
    ),
)
