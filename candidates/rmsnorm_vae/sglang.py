"""sglang's kernels for RMSNormVAE: its RMSNorms over rows, and those it made for the Wan and Qwen-Image VAEs.

The latter include SiLU, so alone they compute another op; in context they are followed, as in sglang's decoder, by its
kernels that concatenate and pad.
"""

import math

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, contiguous, dtypes, half_precision, spans_less_than
from candidates.rmsnorm_vae.launch import padded_like
from candidates.rmsnorm_vae.op import CACHED_FRAMES
from candidates.rmsnorm_vae.rows import channels_last, from_rows, no_bias, rms_eps, to_rows, wan_formula
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_NORM_TRITON = "ops.diffusion.norm.norm_triton"
_PADDING = (1, 1, 1, 1, CACHED_FRAMES, 0)
_CAT_PAD_LAST = ("ops.diffusion.layout.wan_causal_cache_triton", "cat_pad_channels_last_3d")


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layer_norm_fwd_1pass_kernel",),
    contract=Contract.TOLERANCE,
    guard=spans_less_than(1 << 31),
)
def rms_norm_fn(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, ...) of any layout: where channels are not adjacent, the transposes to rows and back are timed."""
    run = sglang.function(_NORM_TRITON, "rms_norm_fn")
    flat_bias = None if bias is None else bias.view(-1)
    y: Tensor = run(to_rows(x), gamma.view(-1), flat_bias, eps=rms_eps(eps, x.shape[1]))
    return from_rows(y, x)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_norm_infer_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(channels_last, no_bias, spans_less_than(1 << 31)),
)
def norm_infer(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, ...), channels-last in and out."""
    run = sglang.function(_NORM_TRITON, "norm_infer")
    y: Tensor = run(to_rows(x), gamma.view(-1), None, rms_eps(eps, x.shape[1]), is_rms_norm=True)
    return from_rows(y, x)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_channel_rmsnorm_finish_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(half_precision, contiguous, no_bias, wan_formula),
)
def channel_rmsnorm_preserve_reduction(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool
) -> Tensor:
    """x (N, C, ...) contiguous. aten's own norm, then one kernel for the rest; compiles anew for every shape."""
    run = sglang.function("ops.diffusion.norm.channel_rmsnorm_preserve_reduction", "channel_rmsnorm_preserve_reduction")
    y: Tensor = run(x, gamma, math.sqrt(x.shape[1]))
    return y


def _at_most_1024_channels(case: Case, device: Device) -> str | None:
    return None if case.dims["C"] <= 1024 else f"C={case.dims['C']} is more than 1024"


def _even_up_to_2048_channels(case: Case, device: Device) -> str | None:
    channels = case.dims["C"]
    return None if channels % 2 == 0 and channels <= 2048 else f"C={channels}: takes even numbers up to 2048"


def _padded_numel_fits(case: Case, device: Device) -> str | None:
    dims = case.dims
    if "T" not in dims:
        return "pads five dims, the case has four"
    out = dims["N"] * dims["C"] * (dims["T"] + CACHED_FRAMES) * (dims["H"] + 2) * (dims["W"] + 2)
    return None if out <= 4 * (2**31 - 1) else f"{out:,} padded elements are past the limit of its padding kernel"


def _spatial_by_eight(case: Case, device: Device) -> str | None:
    dims = case.dims
    positions = dims["T"] * dims["H"] * dims["W"]
    out = dims["N"] * dims["C"] * (dims["T"] + CACHED_FRAMES) * (dims["H"] + 2) * (dims["W"] + 2)
    if positions % 8 or out % 8:
        return f"{positions} positions, {out} padded elements: both must divide by 8"
    return None


_wan_fast_path = all_of(channels_last, _padded_numel_fits, _at_most_1024_channels)
_qwen_fast_path = all_of(channels_last, dtypes(Dtype.BF16), _padded_numel_fits, _even_up_to_2048_channels, no_bias)


def _padded_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


def _cached_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


def _contiguous_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor) -> Tensor:
    return padded_like(x, CACHED_FRAMES).contiguous()


def _cat_pad_last(y: Tensor, cache: Tensor | None) -> Tensor:
    out: Tensor | None = sglang.function(*_CAT_PAD_LAST)(y, cache, _PADDING)
    if out is None:
        raise RuntimeError("cat_pad_channels_last_3d takes no such input")
    return out


def _wan_norm_silu(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    run = sglang.function("ops.diffusion.norm.wan_rmsnorm_silu_triton", "wan_rmsnorm_silu")
    y: Tensor = run(x, gamma, bias, eps=eps)
    return y


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_wan_rmsnorm_silu_kernel", "_cat_pad_cl3d"),
    contract=Contract.TOLERANCE,
    guard=_wan_fast_path,
    context="silu_pad",
    fake=_padded_fake,
)
def wan_silu_pad(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out: norm and SiLU in one kernel, padding in another."""
    return _cat_pad_last(_wan_norm_silu(x, gamma, bias, eps), None)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_wan_rmsnorm_silu_kernel", "_cat_pad_cl3d"),
    contract=Contract.TOLERANCE,
    guard=_wan_fast_path,
    context="silu_cache_pad",
    fake=_cached_fake,
)
def wan_silu_cache_pad(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out: norm and SiLU in one kernel, cache and padding in another."""
    return _cat_pad_last(_wan_norm_silu(x, gamma, bias, eps), cache)


def _qwen_norm_silu(x: Tensor, gamma: Tensor) -> Tensor:
    run = sglang.function("ops.diffusion.norm.channel_rmsnorm_silu_nhwc_jit", "channel_rmsnorm_silu_nhwc")
    y: Tensor = run(x, gamma, math.sqrt(x.shape[1]))
    return y


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("channel_rmsnorm_silu_nhwc", "_cat_pad_cl3d"),
    contract=Contract.TOLERANCE,
    guard=_qwen_fast_path,
    context="silu_pad",
    fake=_padded_fake,
)
def nhwc_silu_pad(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out; the norm's floor is 1e-12, whatever eps says."""
    return _cat_pad_last(_qwen_norm_silu(x, gamma), None)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("channel_rmsnorm_silu_nhwc", "_cat_pad_cl3d"),
    contract=Contract.TOLERANCE,
    guard=_qwen_fast_path,
    context="silu_cache_pad",
    fake=_cached_fake,
)
def nhwc_silu_cache_pad(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out; the norm's floor is 1e-12, whatever eps says."""
    return _cat_pad_last(_qwen_norm_silu(x, gamma), cache)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("channel_rmsnorm_finish_silu", "cat_pad_flat_kernel"),
    contract=Contract.BIT_EXACT,
    guard=all_of(dtypes(Dtype.BF16), contiguous, no_bias, wan_formula, _padded_numel_fits, _spatial_by_eight),
    context="silu_cache_pad",
    fake=_contiguous_fake,
)
def finish_silu_cache_pad(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
) -> Tensor:
    """x (N, C, T, H, W) contiguous: aten's own norm, then one kernel up to SiLU, then one for cache and padding."""
    finish = sglang.function("ops.diffusion.norm.channel_rmsnorm_finish_silu_jit", "channel_rmsnorm_finish_silu")
    cat_pad = sglang.function("kda_kernels.causal_conv3d_cat_pad_jit", "fused_causal_conv3d_cat_pad_cuda")
    norm = torch.linalg.vector_norm(x.float(), dim=1, keepdim=True)
    y: Tensor = cat_pad(finish(x, norm, gamma, math.sqrt(x.shape[1])), cache, _PADDING)
    return y
