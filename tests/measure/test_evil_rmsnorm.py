"""Reported faults of RMSNorm kernels, written as candidates: refused, each for its own reason."""

import pytest

from harness.op import Candidate
from harness.schema.case import Case, Layout
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.evil import rmsnorm_faults as evil
from tests.rig import arm_of, measured, quick, rmsnorm_case

L = Layout
ROWS = {"B": 2, "S": 16, "D": 64}
HEADS = {"B": 2, "S": 8, "H": 4, "D": 32}
# beyond the narrow offsets, its twin within them
LONG = {"B": 2, "S": 40, "D": 64}
RULE = "fail the element rule"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def case(dims: dict[str, int], layout: Layout = L.CONTIGUOUS, rounding: str = "once") -> Case:
    one = rmsnorm_case(dims, layout=layout)
    return one.model_copy(update={"params": {**one.params, "rounding": rounding}})


def judged(candidate: Candidate, one: Case, context: str | None = None) -> tuple[ArmStatus, str]:
    """What becomes of the candidate; the honest one, judged after it, is fine."""
    of = measured(candidate, evil.honest_both_ways, case=one, context=context)
    assert of.status is RunStatus.MEASURED, of.reason
    neighbour = arm_of(of, evil.honest_both_ways)
    assert neighbour.status is ArmStatus.REHEARSED, neighbour.reason
    arm = arm_of(of, candidate)
    return arm.status, arm.reason


@pytest.mark.parametrize(
    ("candidate", "one", "reason"),
    [
        (evil.one_row_stride, case(HEADS, L.SLICED), "contract: layout sliced: "),
        (evil.one_row_stride, case(HEADS), "contract: layout sliced: "),
        (evil.dense_last_dim, case(ROWS), "contract: layout transposed: "),
        (evil.second_pass_dense, case(ROWS), "contract: layout transposed: "),
        (evil.second_pass_dense, case(ROWS, rounding="before_weight"), "contract: layout transposed: "),
        (evil.narrow_offsets, case(LONG), "fail the element rule (element 4096: "),
        (evil.masked_offsets, case(LONG), "normal: "),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_reported_faults(candidate: Candidate, one: Case, reason: str) -> None:
    status, said = judged(candidate, one)
    assert (status, reason in said) == (ArmStatus.GATE_FAILED, True), (status, said)


def test_offsets_that_suffice_are_no_fault() -> None:
    """The case below the reach of the offsets: only a case beyond it shows them, which is what canaries are for."""
    for candidate in (evil.narrow_offsets, evil.masked_offsets):
        assert judged(candidate, case(ROWS))[0] is ArmStatus.REHEARSED


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (evil.sum_in_live_residual, "Argument residual is not defined as mutable but was mutated"),
        (evil.forgets_the_sum, RULE),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_faults_after_a_residual_add(candidate: Candidate, reason: str) -> None:
    status, said = judged(candidate, case(ROWS, rounding="before_weight"), "residual_add")
    assert (status, reason in said) == (ArmStatus.GATE_FAILED, True), (status, said)


def test_norm_of_the_sum_before_it_is_rounded_is_no_fault() -> None:
    assert judged(evil.norm_of_the_wider_sum, case(ROWS), "residual_add")[0] is ArmStatus.REHEARSED


@pytest.mark.parametrize("rounding", ["once", "before_weight"])
def test_one_rounding_and_two_are_within_each_others_tolerance(rounding: str) -> None:
    """Kernels of the other formula are admitted: nothing but rounding differs, and the gate says by how much."""
    arm = arm_of(measured(evil.other_rounding, case=case(ROWS, rounding=rounding)), evil.other_rounding)
    assert arm.status is ArmStatus.REHEARSED, arm.reason
    assert arm.gate is not None
    assert not arm.gate.bit_exact
    assert arm.gate.max_ulp == 1
