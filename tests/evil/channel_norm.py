"""RMSNormVAE candidates with the faults that its layouts and formulas invite; the gate must refuse each."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm_vae.op import native
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

Formula = Callable[[Tensor, Tensor, float], Tensor]


def _kernel(formula: Formula, name: str) -> Candidate:
    """A formula of x, gamma and eps, in fp32."""

    def run(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
        return empty_dense_like(x).copy_(formula(x, gamma, eps))

    make: Any = candidate(
        op="rmsnorm_vae", kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=Contract.TOLERANCE, name=name
    )
    made: Candidate = make(run)
    return made


def _right(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    return native(x.float(), gamma.float(), None, eps, False)


def _over_last_dim(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """A kernel over the last dim given a channel-first tensor as it is: it normalises W."""
    return F.normalize(x.float(), dim=-1, eps=eps) * math.sqrt(x.shape[-1]) * gamma


def _over_everything(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """One norm for an image, as an implementation of GroupNorm with one group has."""
    flat = x.float().flatten(1)
    size = math.sqrt(max(flat.shape[1], 1))
    return (F.normalize(flat, dim=1, eps=eps) * size).view(x.shape) * gamma


def _eps_in_the_mean(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """eps given to an RMSNorm as it is: the mean square of small activations is of its size."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps) * gamma


def _without_root(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """F.normalize alone."""
    return F.normalize(x.float(), dim=1, eps=eps) * gamma


def _contiguous_alone(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Walks the memory in logical order: right on contiguous tensors, wrong on channels-last ones."""
    return _right(x.as_strided(x.shape, torch.empty(x.shape).stride()), gamma, eps)


honest = _kernel(_right, "honest")
over_last_dim = _kernel(_over_last_dim, "over_last_dim")
over_everything = _kernel(_over_everything, "over_everything")
eps_in_the_mean = _kernel(_eps_in_the_mean, "eps_in_the_mean")
without_root = _kernel(_without_root, "without_root")
contiguous_alone = _kernel(_contiguous_alone, "contiguous_alone")
