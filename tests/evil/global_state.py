"""RMSNorm rewrites that are right, and change settings of the whole process on the way."""

from typing import Any

import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import Args, Candidate, Device, Impl, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

calls = [0]
"""Of `changes_later`; a test sets them back."""


def _candidate(impl: Impl, name: str, **more: Any) -> Candidate:
    declare = candidate(
        op="rmsnorm", kind=Kind.REWRITE, provider=EVIL, kernels=(), contract=Contract.TOLERANCE, name=name, **more
    )
    return declare(impl)


def _right(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right."""
    return native(x, weight, eps)


def _custom(name: str, act: Any) -> Impl:
    """A rewrite around a custom op that acts and then computes."""

    def run(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        act()
        return native(x, weight, eps).contiguous()

    op = torch.library.custom_op(f"evil::{name}", run, mutates_args=())
    op.register_fake(lambda x, weight, eps: torch.empty(x.shape, dtype=x.dtype, device=x.device))
    overload = getattr(torch.ops.evil, name).default

    def hides(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        result: Tensor = overload(x, weight, eps)
        return result

    return hides


def _tf32() -> None:
    torch.set_float32_matmul_precision("high")


def _eager() -> None:
    """From here on every compiled arm would run uncompiled, the baseline too."""
    torch.compiler.set_stance("force_eager")


def _later() -> None:
    calls[0] += 1
    if calls[0] == 4:
        torch.set_default_dtype(torch.float64)


def _deterministic(args: Args) -> Args:
    torch.use_deterministic_algorithms(True)
    return args


def _threads(case: Case, device: Device) -> str | None:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return None


fine = _candidate(_right, "fine_neighbour")
also_fine = _candidate(_right, "also_fine")
runs_with_tf32 = _candidate(_custom("tf32", _tf32), "runs_with_tf32")
forces_eager = _candidate(_custom("eager", _eager), "forces_eager")
changes_later = _candidate(_custom("later", _later), "changes_later")
prepares_deterministic = _candidate(_right, "prepares_deterministic", prepare=_deterministic)
guards_with_threads = _candidate(_right, "guards_with_threads", guard=_threads)
