"""Every candidate of `tests.evil.qknorm_rope` is refused with its own reason, and its honest neighbours are not."""

from typing import Any

import pytest
import torch

from candidates.qknorm_rope.conventions import Table
from candidates.qknorm_rope.op import OP
from harness.measure.arms import candidate_arm
from harness.measure.contract import ContractProbe
from harness.measure.gate import ArmGate, Gate
from harness.op import Candidate
from harness.schema.case import Case, Dtype, Layout
from tests.candidates.qknorm_rope_cases import case
from tests.evil import qknorm_rope as evil
from tests.rig import CPU, TOLERANCE, without_inductor

RULE = "fail the element rule"
SIZES = {"B": 2, "S": 16, "H": 8, "D": 16, "dtype": Dtype.BF16, "rounding": "none"}


@pytest.fixture(autouse=True)
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    without_inductor(monkeypatch)


def gqa(**more: Any) -> Case:
    of = case(**(SIZES | {"queries_per_kv": 4} | more))
    return of.model_copy(update={"rehearsal": {"B": 1, "S": 3, "H": 8, "D": 16}})


def reason(of: Case, candidate: Candidate) -> str:
    """Why a comparison would refuse the candidate, or "": built, probed and gated as there, without the baseline."""
    arm = candidate_arm(candidate, OP, None)
    gate = Gate(OP, of, None, TOLERANCE, torch.device("cpu"), seed=1)
    arm.outputs(arm.prepared(gate.draw()))
    if contract := ContractProbe(OP, None, TOLERANCE, CPU).run(candidate, arm, of)[0]:
        return f"contract: {contract}"
    judge = ArmGate(gate, arm)
    for reference in gate.references():
        judge.see(reference)
    return judge.reason


def refused(of: Case, expected: dict[Candidate, str]) -> None:
    for honest in (evil.honest, evil.honest_in_place):
        assert reason(of, honest) == ""
    for candidate, part in expected.items():
        assert part in reason(of, candidate), candidate.name


def test_faults_that_grouped_heads_show() -> None:
    faults = (
        evil.half_split_table_of_interleaved_pairs,
        evil.weights_crossed,
        evil.more_kv_heads_than_there_are,
        evil.rotates_before_the_norm,
        evil.reloads_what_it_stored,
    )
    refused(gqa(), dict.fromkeys(faults, RULE))


def test_crossed_outputs_show_where_shapes_are_equal() -> None:
    refused(gqa(queries_per_kv=1), {evil.outputs_crossed: RULE})


def test_conventions_of_pairs() -> None:
    refused(gqa(pairs="neox"), {evil.always_interleaved: RULE})


def test_width_of_the_rotation() -> None:
    refused(gqa(rotary_dim=8), {evil.rotary_dim_not_passed: RULE})


def test_norm_over_all_heads() -> None:
    refused(gqa(across_heads=True), {evil.norms_each_head: RULE})


def test_the_two_interleaved_conventions_differ_on_a_full_table_alone() -> None:
    refused(gqa(table=Table.FULL), {evil.other_interleaved_convention: RULE})
    assert reason(gqa(table=Table.REPEATED), evil.other_interleaved_convention) == ""


def test_tables_that_differ_by_batch() -> None:
    refused(gqa(per_batch=True), {evil.first_batch_for_all: RULE})


def test_a_shared_table_starts_anew_in_every_batch_though_the_case_has_one() -> None:
    refused(gqa(B=1), {evil.positions_run_on_over_batches: "contract: layout contiguous: "})


def test_strides_of_q_for_k_show_though_the_case_is_packed() -> None:
    refused(gqa(layout=Layout.SLICED), {evil.k_walks_with_the_stride_of_q: "contract: layout contiguous: "})


def test_a_race_in_place_shows_in_a_second_run() -> None:
    refused(gqa(), {evil.reloads_what_it_may_have_stored: "two runs on the same inputs differ"})


def test_a_write_into_v_shows_though_q_and_k_are_declared() -> None:
    refused(gqa(layout=Layout.SLICED), {evil.more_kv_heads_into_v: "writes beside its inputs 'k', 'q'"})
