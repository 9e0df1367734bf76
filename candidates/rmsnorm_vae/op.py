"""RMSNormVAE: RMSNorm over the channels of a channel-first activation, as the Wan and Qwen-Image VAEs use it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._dense import empty_dense_like
from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case, Layout

CACHED_FRAMES = 2
"""Frames of the chunk before that a causal 3x3x3 convolution reads."""


def native(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x / max(‖x‖ over dim 1, eps) * √C * gamma (+ bias). x (N, C, ...), gamma and bias (C, 1, ...).

    Without `upcast` every step is in x's dtype: vllm-omni's `RMSNormVAE.forward_native` (eps 1e-6). With it the
    quotient is taken in fp32 and then rounded: diffusers' `WanRMS_norm` and `QwenImageRMS_norm` (eps 1e-12).
    """
    operand = x.to(torch.promote_types(x.dtype, torch.float32)) if upcast else x
    y: Tensor = F.normalize(operand, dim=1, eps=eps).to(x.dtype) * math.sqrt(x.shape[1]) * gamma
    return y if bias is None else y + bias


def fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """Like x, strides included: channels-last in, channels-last out."""
    return empty_dense_like(x)


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout; gamma about 1 and bias (where there is one) about 0, as in trained checkpoints."""
    channels = (case.dims["C"], *[1] * (len(case.dims) - 2))
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "gamma": draw.weight("gamma", channels, loc=1.0, scale=0.2),
        "bias": draw.weight("bias", channels, scale=0.2) if case.params["bias"] else None,
        "eps": case.params["eps"],
        "upcast": case.params["upcast"],
    }


def _weights(case: Case) -> int:
    return case.dims["C"] * (2 if case.params["bias"] else 1)


def bytes_moved(case: Case) -> int:
    """x once in, y once out, gamma and bias."""
    return (2 * case.numel + _weights(case)) * case.dtype.bytes


def check(case: Case) -> str | None:
    """The contexts pad frames, so they need them."""
    if case.contexts and "T" not in case.dims:
        return f"contexts {', '.join(case.contexts)} pad a causal 3-D convolution's input, and there is no T"
    return None


def _silu_pad(impl: Impl) -> Impl:
    def rmsnorm_silu_pad(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
        y = F.silu(impl(x=x, gamma=gamma, bias=bias, eps=eps, upcast=upcast))
        return F.pad(y, (1, 1, 1, 1, CACHED_FRAMES, 0))

    return rmsnorm_silu_pad


def _cache_shape(case: Case) -> tuple[int, ...]:
    return tuple({**case.dims, "T": CACHED_FRAMES}.values())


def _cache_inputs(case: Case, draw: Draw) -> Args:
    layout = case.layout if case.layout is not Layout.TRANSPOSED else Layout.CONTIGUOUS
    return inputs(case, draw) | {"cache": draw.activation("cache", _cache_shape(case), layout)}


def _silu_cache_pad(impl: Impl) -> Impl:
    def rmsnorm_silu_cache_pad(
        x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
    ) -> Tensor:
        y = F.silu(impl(x=x, gamma=gamma, bias=bias, eps=eps, upcast=upcast))
        return F.pad(torch.cat([cache, y], dim=2), (1, 1, 1, 1, 0, 0))

    return rmsnorm_silu_cache_pad


def _padded_numel(case: Case) -> int:
    dims = case.dims
    return dims["N"] * dims["C"] * (dims["T"] + CACHED_FRAMES) * (dims["H"] + 2) * (dims["W"] + 2)


def _silu_pad_bytes(case: Case) -> int:
    return (case.numel + _padded_numel(case) + _weights(case)) * case.dtype.bytes


def _silu_cache_pad_bytes(case: Case) -> int:
    cached = case.numel // max(case.dims["T"], 1) * CACHED_FRAMES
    return _silu_pad_bytes(case) + cached * case.dtype.bytes


OP = Op(
    id="rmsnorm_vae",
    dims=(("N", "C", "H", "W"), ("N", "C", "T", "H", "W")),
    params={"eps": float, "upcast": bool, "bias": bool},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="silu_pad",
            what="RMSNormVAE -> SiLU -> zero padding of the causal 3x3x3 convolution, two frames in front",
            inputs=inputs,
            compose=_silu_pad,
            bytes_moved=_silu_pad_bytes,
        ),
        Context(
            id="silu_cache_pad",
            what="RMSNormVAE -> SiLU -> behind two cached frames -> padding of the causal 3x3x3 convolution",
            inputs=_cache_inputs,
            compose=_silu_cache_pad,
            bytes_moved=_silu_cache_pad_bytes,
        ),
    ),
)
