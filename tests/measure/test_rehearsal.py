"""What a rehearsal leaves out for kernels in Triton's interpreter: not twice in one worker what is the same."""

import pytest
import torch
from torch import Tensor

from harness.op import INHOUSE, Candidate, candidate
from harness.protocol import Task
from harness.schema.case import Layout
from harness.schema.vocabulary import ArmStatus, Contract, Kind
from tests.rig import arm_of, comparison, quick, rmsnorm_case

FULL = ("normal", "normal, new values", "large", "small", "offset")
PLAIN = FULL[:2]


def kernel(fails_at: float = float("inf")) -> Candidate:
    """RMSNorm as a kernel in Triton's interpreter would be seen; wrong where an activation is above `fails_at`."""

    @candidate(
        op="rmsnorm", kind=Kind.TRITON, provider=INHOUSE, kernels=("k",), contract=Contract.TOLERANCE,
        name=f"rehearsed_{str(fails_at).replace('.', '_')}",
    )  # fmt: skip
    def rehearsed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        acc = x.double()
        y = (acc * torch.rsqrt(acc.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)
        return torch.zeros_like(x) if float(x.abs().max()) > fails_at else y

    return rehearsed


def test_second_comparison_of_a_layout_judges_interpreted_kernels_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    tried = kernel()
    compare = comparison([tried])
    cases = [
        rmsnorm_case(case_id="first"),
        rmsnorm_case({"B": 2, "S": 8, "D": 96}, case_id="second"),
        rmsnorm_case(layout=Layout.SLICED, case_id="other-layout"),
    ]
    records = [arm_of(compare.run(Task(case=case, context=None)), tried) for case in cases]
    assert [record.status for record in records] == [ArmStatus.REHEARSED] * 3
    assert [record.gate.variants for record in records if record.gate] == [FULL, PLAIN, FULL]


def test_full_gate_is_owed_until_it_was_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    tried = kernel(fails_at=50.0)
    compare = comparison([tried])
    for size in (16, 8):
        record = arm_of(compare.run(Task(case=rmsnorm_case({"B": 2, "S": size, "D": 64}), context=None)), tried)
        assert record.status is ArmStatus.GATE_FAILED
        assert "large" in record.reason


def test_compiled_arms_are_judged_in_full_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    compare = comparison([])
    for size in (16, 8):
        measurement = compare.run(Task(case=rmsnorm_case({"B": 2, "S": size, "D": 64}), context=None))
        gate = arm_of(measurement, "torch.compile").gate
        assert gate is not None
        assert gate.variants == FULL
