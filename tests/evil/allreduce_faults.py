"""All-reduce + RMSNorm candidates with faults reported of public kernels, or near to them; each must be refused."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates.allreduce_rmsnorm.collective import all_reduced, process_group
from candidates.allreduce_rmsnorm.op import native
from candidates.rmsnorm.op import native as rmsnorm
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

Pair = tuple[Tensor, Tensor]


def _kernel(**more: Any) -> Callable[[Callable[..., Any]], Candidate]:
    return candidate(
        op="allreduce_rmsnorm", kind=Kind.CUDA, provider=EVIL, kernels=("never",), contract=Contract.TOLERANCE, **more
    )


@_kernel(equal_ranks=True)
def honest(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Right; every other one's neighbour."""
    return native(x, weight, eps, group, residual)


@_kernel(mutates=("x", "residual"), returns=("x", "residual"))
def honest_in_place(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> None:
    """Right, and says what it writes to."""
    y, h = native(x, weight, eps, group, residual)
    x.copy_(y)
    residual.copy_(h)


@_kernel()
def forgets_the_last_rank(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Loops over one rank fewer than there are."""
    ranks = process_group(group)
    last = ranks.rank() == ranks.size() - 1
    return native(torch.zeros_like(x) if last else x, weight, eps, group, residual)


@_kernel()
def residual_of_every_rank(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Adds the residual before the sum: as often as there are ranks."""
    return native(x + residual, weight, eps, group, torch.zeros_like(residual))


@_kernel()
def norm_before_sum(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Each rank norms its own part, and the norms are added."""
    return all_reduced(rmsnorm(x + residual, weight, eps), group), all_reduced(x, group) + residual


_peer: dict[tuple[int, ...], Tensor] = {}


@_kernel()
def stale_epoch(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Does not wait: adds what the others sent in the launch before, right only while they send the same again."""
    total = all_reduced(x, group)
    theirs = total.float() - x.float()
    before = _peer.get(tuple(x.shape), theirs)
    _peer[tuple(x.shape)] = theirs
    h = (before + x.float()).to(x.dtype) + residual
    return rmsnorm(h, weight, eps), h


@_kernel(equal_ranks=True)
def own_part_first(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Every rank adds the residual to its own part first, rounds, then adds the rest: each rounds otherwise."""
    rest = all_reduced(x, group).float() - x.float()
    h = ((x + residual).float() + rest).to(x.dtype)
    return rmsnorm(h, weight, eps), h


@_kernel()
def sum_in_live_residual(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """sglang PR 28005: writes the sum where the residual still lives, undeclared."""
    y, h = native(x, weight, eps, group, residual)
    residual.copy_(h)
    return y, h


@_kernel()
def reads_the_weight_as_fp32(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """vllm issue 48324: one type for activation and weight, and they have two; here bf16 pairs read as fp32."""
    h = native(x, weight, eps, group, residual)[1]
    return rmsnorm(h, weight.view(torch.float32).repeat(2).to(x.dtype), eps), h


@_kernel()
def drops_the_last_tokens(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    """Two shots over tokens // ranks each: what does not divide stays as it was."""
    ranks = process_group(group).size()
    whole = len(x) // ranks * ranks
    y, h = native(x, weight, eps, group, residual)
    h[whole:] = x[whole:] + residual[whole:]
    y[whole:] = rmsnorm(h[whole:], weight, eps)
    return y, h
