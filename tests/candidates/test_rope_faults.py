"""Every candidate of `tests.evil.rope_faults` is refused with its own reason, and its honest neighbour is not."""

import pytest

from candidates.rope_wan.op import OP
from harness.op import Candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.candidates.rope_cases import FORMS, rope_case
from tests.evil import rope_faults as evil
from tests.rig import arm_of, measured, quick

RULE = "fail the element rule"
FAULTS: dict[str, tuple[Case, dict[Candidate, str]]] = {
    "one sequence, tables of its own": (
        rope_case(B=1, positions="per_batch", dtype=Dtype.BF16, rehearsal={"B": 1, "S": 4, "H": 4, "D": 16}),
        {evil.first_batch_for_all: "contract: layout contiguous", evil.ignores_strides: "contract: layout "},
    ),
    "two sequences, tables of their own": (
        rope_case(positions="per_batch", dtype=Dtype.BF16),
        {evil.first_batch_for_all: RULE, evil.turns_back: RULE, evil.other_pairs: RULE},
    ),
    "two sequences, shared tables": (rope_case(dtype=Dtype.BF16), {evil.runs_into_next_positions: RULE}),
    "columns of Wan's": (
        rope_case(dtype=Dtype.BF16, **FORMS["wan of diffusers"]),
        {evil.same_columns: RULE, evil.tables_of_other_pairs: RULE},
    ),
    "part of a head": (
        rope_case(rotary_dim=8, dtype=Dtype.BF16, form="rotate_half"),
        {evil.whole_head: RULE, evil.forgets_the_rest: RULE},
    ),
    "halves": (
        rope_case(dtype=Dtype.BF16, **FORMS["qwen3"]),
        {evil.other_pairs: RULE, evil.tables_of_other_pairs: RULE, evil.reads_what_it_wrote: RULE},
    ),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.mark.parametrize(("case", "faults"), FAULTS.values(), ids=FAULTS.keys())
def test_reported_faults_are_refused(case: Case, faults: dict[Candidate, str]) -> None:
    of = measured(*faults, evil.honest, case=case, op=OP)
    for candidate, reason in faults.items():
        arm = arm_of(of, candidate)
        assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.id, arm.status, arm.reason)
    neighbour = arm_of(of, evil.honest)
    assert neighbour.status is ArmStatus.REHEARSED, (neighbour.status, neighbour.reason)
    assert of.status is RunStatus.MEASURED, of.reason


def test_k_from_q_is_refused() -> None:
    case = rope_case(dtype=Dtype.BF16, heads_per_kv=2, contexts=("qk",))
    of = measured(evil.crosses_q_and_k, evil.honest, case=case, context="qk", op=OP)
    arm = arm_of(of, evil.crosses_q_and_k)
    assert (arm.status, RULE in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    assert arm_of(of, evil.honest).status is ArmStatus.REHEARSED
