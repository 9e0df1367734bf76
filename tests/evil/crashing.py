"""RMSNorm candidates that take their process down. Those named in EVIL_CRASHES exist beside the harmless ones."""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

_LARGE = 1024
_wanted = os.environ.get("EVIL_CRASHES", "").split(",")
_calls = [0]


def _candidate(kind: Kind, **more: Any) -> Callable[[Callable[..., Any]], Candidate]:
    kernels = () if kind is Kind.REWRITE else ("never",)
    return candidate(op="rmsnorm", kind=kind, provider=EVIL, kernels=kernels, contract=Contract.TOLERANCE, **more)


def _segfault() -> None:
    ctypes.memset(1, 0, 1)


@_candidate(Kind.TRITON)
def honest(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, never timed on a CPU."""
    return native(x, weight, eps).contiguous()


@_candidate(Kind.REWRITE)
def honest_rewrite(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, timed."""
    return native(x, weight, eps)


if "segv_in_gate" in _wanted:

    @_candidate(Kind.TRITON)
    def raises(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """An exception of Python's."""
        raise ValueError("boom\nand more")

    @_candidate(Kind.TRITON)
    def out_of_memory(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """What torch raises when the device is full."""
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 EiB.")

    @_candidate(Kind.TRITON)
    def segv_in_gate(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Writes to address 1 on its second call at the case's own size."""
        if x.numel() > _LARGE:
            _calls[0] += 1
            if _calls[0] == 2:
                _segfault()
        return native(x, weight, eps).contiguous()


if "aborts_in_gate" in _wanted:

    @_candidate(Kind.TRITON)
    def aborts_in_gate(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Calls abort, as a failed assertion in C++ does."""
        if x.numel() > _LARGE:
            _calls[0] += 1
            if _calls[0] == 2:
                os.abort()
        return native(x, weight, eps).contiguous()


if "exits_in_build" in _wanted:

    @_candidate(Kind.TRITON)
    def exits_in_build(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Leaves as if all were well."""
        sys.exit(0)


def _is_timed() -> bool:
    """Whether the sampler is among the callers."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_filename.endswith("sampler.py"):
            return True
    return False


def _while_timed(name: str, end: Callable[[], None]) -> Candidate:
    def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if _is_timed():
            end()
        return native(x, weight, eps).contiguous()

    op = torch.library.custom_op(f"evil::{name}", run, mutates_args=())
    op.register_fake(lambda x, weight, eps: torch.empty(x.shape, dtype=x.dtype, device=x.device))
    overload = getattr(torch.ops.evil, name).default

    def hides(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Right until it is timed."""
        result: Tensor = overload(x, weight, eps)
        return result

    return _candidate(Kind.REWRITE, name=name)(hides)


if "segv_in_timing" in _wanted:
    segv_in_timing = _while_timed("segv_in_timing", _segfault)

if "hangs_in_timing" in _wanted:
    hangs_in_timing = _while_timed("hangs_in_timing", lambda: time.sleep(600))
