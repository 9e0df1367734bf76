"""RMSNorm candidates with faults that were reported of public kernels; the gate must refuse each."""

import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL


def _kernel(context: str | None = None, fake: object = None):  # type: ignore[no-untyped-def]
    return candidate(
        op="rmsnorm", kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=Contract.TOLERANCE,
        context=context, fake=fake,
    )  # fmt: skip


def _rows(x: Tensor, row_stride: int, last_stride: int = 1) -> Tensor:
    """x's memory as x.shape, every row `row_stride` after the one before."""
    strides = [last_stride, row_stride]
    for size in x.shape[-2:0:-1]:
        strides.append(strides[-1] * size)
    return x.as_strided(x.shape, strides[::-1])


@_kernel()
def honest_both_ways(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Right; every other one's neighbour."""
    return native(x, weight, eps, rounding).contiguous()


@_kernel()
def one_row_stride(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """vllm PR 28103: x as (rows, D) by one row stride; heads of a packed projection run into their neighbours."""
    return native(_rows(x, x.stride(-2)), weight, eps, rounding).contiguous()


@_kernel()
def dense_last_dim(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """vllm PR 24247, flashinfer PR 4060: takes neighbours in memory for neighbours in a row, silently."""
    return native(x.as_strided(x.shape, (*x.stride()[:-1], 1)), weight, eps, rounding).contiguous()


@_kernel()
def second_pass_dense(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """LightLLM issue 1467: the sum of squares honours the last dim's stride, the second pass does not."""
    inverse_rms = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    again = x.as_strided(x.shape, (*x.stride()[:-1], 1))
    return (again.float() * inverse_rms * weight.float()).to(x.dtype).contiguous()


_BITS = 12
"""Of the offsets: 32 would take a tensor of gigabytes."""


@_kernel()
def narrow_offsets(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """flash-linear-attention issue 1080, vllm issue 42173: offsets wrap round, and late rows read early ones."""
    flat = x.reshape(-1)
    offset = torch.arange(flat.numel()) % (1 << _BITS)
    return native(flat[offset].view(x.shape), weight, eps, rounding).contiguous()


@_kernel()
def masked_offsets(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """DeepSpeed issue 8590: a wrapped offset passes for out of range, and its element is never written."""
    y = native(x, weight, eps, rounding).contiguous()
    out = torch.empty_like(y)
    out.view(-1)[: 1 << _BITS] = y.view(-1)[: 1 << _BITS]
    return out


def _pair(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = "once") -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(residual)


@_kernel(context="residual_add", fake=_pair)
def sum_in_live_residual(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = "once"
) -> tuple[Tensor, Tensor]:
    """sglang PR 28005: the sum is written over the residual, which is still the input of somebody else."""
    residual.add_(x)
    return native(residual, weight, eps, rounding).contiguous(), residual.clone()


@_kernel(context="residual_add", fake=_pair)
def norm_of_the_wider_sum(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = "once"
) -> tuple[Tensor, Tensor]:
    """Right: normalises the sum before it is rounded, as some kernels do."""
    wide = x.float() + residual.float()
    return native(wide, weight.float(), eps).to(x.dtype), wide.to(x.dtype)


@_kernel(context="residual_add", fake=_pair)
def forgets_the_sum(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = "once"
) -> tuple[Tensor, Tensor]:
    """Hands on the residual it was given instead of the sum."""
    return native(x + residual, weight, eps, rounding).contiguous(), residual.clone()


@_kernel()
def other_rounding(x: Tensor, weight: Tensor, eps: float, rounding: str = "once") -> Tensor:
    """No fault: the formula that rounds where the case's does not."""
    return native(x, weight, eps, "before_weight" if rounding == "once" else "once").contiguous()
