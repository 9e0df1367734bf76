"""Our own Triton kernels for RMSNormVAE, alone and up to the next convolution's input, as candidates."""

from torch import Tensor

from candidates.rmsnorm_vae.launch import padded_like, rmsnorm_vae, rmsnorm_vae_silu_padded
from candidates.rmsnorm_vae.op import CACHED_FRAMES
from candidates.rmsnorm_vae.plan import MAX_CHANNELS
from harness.op import INHOUSE, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind


def _channels_fit(case: Case, device: Device) -> str | None:
    channels = case.dims["C"]
    return None if channels <= MAX_CHANNELS else f"C={channels} is more than {MAX_CHANNELS}"


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_vae_(rows|tile)",),
    contract=Contract.TOLERANCE,
    guard=_channels_fit,
)
def triton_rmsnorm_vae(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """All channels of a run of positions in registers, any strides; fp32 inside, whatever `upcast` says."""
    return rmsnorm_vae(x, gamma, bias, eps)


def _padded_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_vae_silu_pad(_rows)?",),
    contract=Contract.TOLERANCE,
    guard=_channels_fit,
    context="silu_pad",
    fake=_padded_fake,
)
def triton_silu_pad(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """The convolution's input in one pass over it."""
    return rmsnorm_vae_silu_padded(x, gamma, bias, eps, CACHED_FRAMES, None)


def _cached_fake(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor) -> Tensor:
    return padded_like(x, CACHED_FRAMES)


@candidate(
    op="rmsnorm_vae",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_vae_silu_pad(_rows)?",),
    contract=Contract.TOLERANCE,
    guard=_channels_fit,
    context="silu_cache_pad",
    fake=_cached_fake,
)
def triton_silu_cache_pad(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor
) -> Tensor:
    """The convolution's input in one pass over it, the cached frames copied on the way."""
    return rmsnorm_vae_silu_padded(x, gamma, bias, eps, CACHED_FRAMES, cache)
