"""flashinfer's RMSNorms over rows in CUDA; the one with SiLU was tuned for the Wan VAE's sizes on a B200."""

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import all_of, dtypes, half_precision, require_same_dtype, spans_less_than
from candidates.rmsnorm_vae.launch import padded_like
from candidates.rmsnorm_vae.op import CACHED_FRAMES
from candidates.rmsnorm_vae.rows import channels_last, from_rows, no_bias, rms_eps, to_rows
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_offsets = spans_less_than(1 << 31)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"norm::RMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, channels_last, no_bias, _offsets),
)
def rmsnorm(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, ...), channels-last in and out: one block per position."""
    require_same_dtype(x, gamma)
    rows = to_rows(x)
    y = torch.empty_like(rows)
    flashinfer.function("norm", "rmsnorm")(rows, gamma.view(-1), rms_eps(eps, x.shape[1]), out=y)
    return from_rows(y, x)


def _has_frames(case: Case, device: Device) -> str | None:
    return None if "T" in case.dims else "pads five dims, the case has four"


def _whole_loads(case: Case, device: Device) -> str | None:
    channels = case.dims["C"]
    return None if channels % 32 == 0 else f"C={channels} does not divide among the 32 lanes of a warp"


_silu_guard = all_of(dtypes(Dtype.BF16), channels_last, no_bias, _has_frames, _whole_loads, _offsets)


def _norm_silu(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    require_same_dtype(x, gamma)
    run = flashinfer.function("norm", "fused_rmsnorm_silu")
    return from_rows(run(to_rows(x), gamma.view(-1), rms_eps(eps, x.shape[1])), x)


def _padded_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"ln_fwd_kernel",),
    contract=Contract.TOLERANCE,
    guard=_silu_guard,
    context="silu_pad",
    fake=_padded_fake,
)
def rmsnorm_silu_pad(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out; padded by aten."""
    return F.pad(_norm_silu(x, gamma, eps), (1, 1, 1, 1, CACHED_FRAMES, 0))


def _cached_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"ln_fwd_kernel",),
    contract=Contract.TOLERANCE,
    guard=_silu_guard,
    context="silu_cache_pad",
    fake=_cached_fake,
)
def rmsnorm_silu_cache_pad(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
) -> Tensor:
    """x (N, C, T, H, W), channels-last in and out; concatenated and padded by aten."""
    return F.pad(torch.cat([cache, _norm_silu(x, gamma, eps)], dim=2), (1, 1, 1, 1, 0, 0))
