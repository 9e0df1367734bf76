"""Candidates for all-reduce + RMSNorm that misbehave on rank 1 alone. Those named in EVIL_RANKS die, or hang, there."""

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates.allreduce_rmsnorm.op import native
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

_LARGE = 1024
"""Elements above which it is the case itself and no probe."""
_wanted = os.environ.get("EVIL_RANKS", "").split(",")
_on_rank_1 = os.environ.get("RANK") == "1"


def _candidate(kind: Kind = Kind.TRITON, **more: Any) -> Callable[[Callable[..., Any]], Candidate]:
    kernels = () if kind is Kind.REWRITE else ("never",)
    return candidate(
        op="allreduce_rmsnorm", kind=kind, provider=EVIL, kernels=kernels, contract=Contract.TOLERANCE, **more
    )


@_candidate(Kind.REWRITE)
def honest_rewrite(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Right on every rank, timed."""
    return native(x, weight, eps, group, residual)


@_candidate(equal_ranks=True)
def honest(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Right on every rank, and the same on all."""
    return native(x, weight, eps, group, residual)


@_candidate()
def wrong_on_rank_1(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Rank 1 forgets to add what the other has."""
    y, h = native(x, weight, eps, group, residual)
    return (y + 1, h) if _on_rank_1 else (y, h)


@_candidate(equal_ranks=True)
def unequal(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The last element of rank 1 is the next number there is: no rank is wrong, and they differ."""
    y, h = native(x, weight, eps, group, residual)
    if _on_rank_1 and y.numel():
        y.view(torch.int16)[-1, -1] += 1
    return y, h


@_candidate(multicast=True)
def declares_multicast(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Says that it needs what stays off."""
    raise AssertionError("must not run")


@_candidate()
def calls_multicast(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Needs it and does not say so."""
    torch.ops.symm_mem.multimem_all_reduce_(x, "sum", group)
    raise AssertionError("must not come to this")


def _dies(how: Callable[[], object], x: Tensor) -> None:
    if _on_rank_1 and x.numel() > _LARGE:
        how()


if "crashes" in _wanted:

    @_candidate()
    def crashes(
        x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rank 1 writes to address 1 while rank 0 waits for it."""
        _dies(lambda: ctypes.memset(1, 0, 1), x)
        return native(x, weight, eps, group, residual)


if "hangs" in _wanted:

    @_candidate()
    def hangs(
        x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rank 1 has done its part and does not come back."""
        outputs = native(x, weight, eps, group, residual)
        _dies(lambda: time.sleep(600), x)
        return outputs


if "raises" in _wanted:

    @_candidate()
    def raises(
        x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rank 1 raises while rank 0 waits for it."""
        if _on_rank_1 and x.numel() > _LARGE:
            raise ValueError("boom")
        return native(x, weight, eps, group, residual)
