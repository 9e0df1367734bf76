"""Candidates for all-reduce + RMSNorm in a model of two ranks: right, wrong on rank 1 alone, and killed there."""

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.op import TORCH, Candidate, candidate
from harness.schema.vocabulary import Contract, Kind

Pair = tuple[Tensor, Tensor]
_on_rank_1 = os.environ.get("RANK") == "1"


def _rewrite() -> Callable[[Callable[..., Any]], Candidate]:
    return candidate(op="allreduce_rmsnorm", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE)


def _gathered(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor) -> Pair:
    pending = torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), 2, group)
    parts: Tensor = torch.ops._c10d_functional.wait_tensor(pending)
    h = parts.view(2, *x.shape).sum(0) + residual
    h32 = h.float()
    return weight * (h32 / (h32.square().mean(-1, keepdim=True) + eps).sqrt()).to(h.dtype), h


@_rewrite()
def gathered(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str) -> Pair:
    """Right: an all-gather and a sum of two."""
    return _gathered(x, weight, eps, group, residual)


@_rewrite()
def off_on_rank_1(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str) -> Pair:
    """Rank 1 adds something."""
    y, h = _gathered(x, weight, eps, group, residual)
    return (y + 1, h) if _on_rank_1 else (y, h)


@_rewrite()
def killed_on_rank_1(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str) -> Pair:
    """Rank 1 is gone while rank 0 waits for it."""
    if _on_rank_1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _gathered(x, weight, eps, group, residual)
