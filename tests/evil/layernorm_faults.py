"""LayerNorm and AdaLayerNorm candidates with faults that were reported of public kernels, or are of their family."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates.adalayernorm import op as ada
from candidates.adalayernorm.inhouse import residual_fake
from candidates.layernorm import op as ln
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL


def _kernel(op: str, *, contract: Contract = Contract.TOLERANCE, **more: Any) -> Callable[[Any], Candidate]:
    return candidate(op=op, kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=contract, **more)


_layernorm = functools.partial(_kernel, "layernorm")
_adalayernorm = functools.partial(_kernel, "adalayernorm")


@_layernorm()
def honest_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Right; every other one's neighbour."""
    return ln.native(x, weight, bias, eps).contiguous()


@_layernorm()
def one_pass_variance(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """E[x²] - mean² in fp32: loses the digits that x's mean takes."""
    x_acc = x.float()
    mean = x_acc.mean(-1, keepdim=True)
    variance = (x_acc.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0)
    return ((x_acc - mean) * torch.rsqrt(variance + eps)).to(x.dtype).contiguous()


@_layernorm()
def counts_padding(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Takes the zeros that pad a row to a power of two for elements when it sums squared deviations."""
    width = x.shape[-1]
    padding = (1 << (width - 1).bit_length()) - width
    x_acc = x.float()
    mean = x_acc.mean(-1, keepdim=True)
    squares = (x_acc - mean).square().sum(-1, keepdim=True) + padding * mean.square()
    return ((x_acc - mean) * torch.rsqrt(squares / width + eps)).to(x.dtype).contiguous()


@_layernorm()
def unbiased_variance(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Divides by D - 1, as `torch.var` does unless it is told otherwise."""
    x_acc = x.float()
    variance, mean = torch.var_mean(x_acc, -1, keepdim=True)
    return ((x_acc - mean) * torch.rsqrt(variance + eps)).to(x.dtype).contiguous()


@_layernorm()
def reads_weights_as_x(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Reads fp32 weights as if they were of x's dtype (vllm issue 48324)."""
    if weight is not None and bias is not None:
        weight, bias = (w.view(x.dtype)[: x.shape[-1]] for w in (weight, bias))
    return ln.native(x, weight, bias, eps).contiguous()


@_layernorm()
def walks_slices_as_dense(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Checks the last stride alone and walks the rows as if nothing lay between them."""
    assert x.stride(-1) == 1
    return ln.native(x.as_strided(x.shape, torch.empty(x.shape).stride()), weight, bias, eps).contiguous()


@_adalayernorm()
def honest(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Right; every other one's neighbour."""
    return ada.native(x, scale, shift, eps, formula).contiguous()


@_adalayernorm()
def shift_per_frame(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Reads a shift per token at the index of the scale's frame (sglang PR 18673)."""
    if scale.ndim == 4 and shift.ndim == 3:
        shift = shift[:, : scale.shape[1], None]
    return ada.native(x, scale, shift, eps, formula).contiguous()


@_adalayernorm()
def first_batch_modulates_all(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Takes batch 0's scale and shift for every batch."""
    return ada.native(x, scale[:1].expand(scale.shape), shift[:1].expand(shift.shape), eps, formula).contiguous()


@_adalayernorm()
def forgets_one(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Multiplies by the scale instead of one plus it."""
    return ada.native(x, scale - 1, shift, eps, formula).contiguous()


@_adalayernorm(contract=Contract.BIT_EXACT)
def rounds_once(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Nearer to the truth than native, and claims to be native to the last bit."""
    return ada.native(x, scale.float(), shift.float(), eps, ada.WAN).contiguous()


@_adalayernorm()
def modulates_before_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """The other order."""
    modulated = ada.modulate(x.float(), scale.float(), shift.float())
    return F.layer_norm(modulated, x.shape[-1:], eps=eps).to(x.dtype).contiguous()


@_adalayernorm(context="residual_gate", fake=residual_fake)
def residual_in_place(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """Right, but leaves the sum in the live residual as well (sglang PR 28005)."""
    y, h = ada.OP.context("residual_gate").compose(ada.native)(x, scale, shift, eps, formula, residual, gate)
    residual.copy_(h)
    return y.contiguous(), h.contiguous()


@_adalayernorm(context="residual_gate", fake=residual_fake)
def normalises_update(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """Adds the residual after the norm has seen the update alone."""
    _, h = ada.OP.context("residual_gate").compose(ada.native)(x, scale, shift, eps, formula, residual, gate)
    return ada.native(x, scale, shift, eps, formula).contiguous(), h.contiguous()
