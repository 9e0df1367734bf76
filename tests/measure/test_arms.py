"""Certified compiles: one graph each, its own code, its own cache entry; registration of custom ops."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candidates.rmsnorm.op import OP
from harness.measure.arms import (
    BASELINE_ID,
    NATIVE_ID,
    TWIN_ID,
    Arm,
    baseline_arms,
    candidate_arm,
    certified,
    own_code,
    registered_op,
)
from harness.op import Op
from harness.protocol import Task
from harness.schema.vocabulary import ArmStatus, Kind, Role, RunStatus
from tests.evil import hidden_work, wrong_results
from tests.rig import arm_of, comparison, quick, rmsnorm_case, without_inductor


def args(rows: int) -> dict[str, object]:
    return {"x": torch.randn(rows, 64).bfloat16(), "weight": torch.randn(64).bfloat16(), "eps": 1e-6}


def by_id(op: Op = OP) -> dict[str, Arm]:
    return {arm.id: arm for arm in baseline_arms(op, None)}


@pytest.fixture(autouse=True)
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    without_inductor(monkeypatch)


def test_one_graph_is_certified_and_native_needs_none() -> None:
    arms = by_id()
    given = args(8)
    for arm in arms.values():
        assert torch.allclose(arm.outputs(given)[0].float(), OP.native(**given).float(), rtol=1e-2, atol=1e-2)
        assert certified(arm) is None
    assert arms[NATIVE_ID].counter is None
    assert [arms[name].counter.graphs for name in (BASELINE_ID, TWIN_ID)] == [1, 1]  # type: ignore[union-attr]


@pytest.mark.defence("certified_baseline")
def test_no_graph_is_a_fall_back() -> None:
    """What the real worker meets when Dynamo is switched off is in `tests.test_isolate`."""
    arm = by_id()[BASELINE_ID]
    assert certified(arm) == "torch.compile ran nothing: it fell back to eager"


@pytest.mark.defence("certified_baseline")
def test_a_second_graph_is_a_recompile() -> None:
    arm = by_id()[BASELINE_ID]
    for rows in (8, 9):
        arm.outputs(args(rows))
    assert certified(arm) == "torch.compile made 2 graphs where one was expected (graph break or recompile)"


def test_nine_shapes_through_one_compile_are_never_certified() -> None:
    """Dynamo's limit is eight, and `fullgraph` makes the ninth an error instead of eager code in silence."""
    arm = by_id()[BASELINE_ID]
    for rows in range(8, 16):
        arm.outputs(args(rows))
    assert certified(arm) == "torch.compile made 8 graphs where one was expected (graph break or recompile)"
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        arm.outputs(args(16))


def test_graph_break_is_an_error_not_a_slower_baseline() -> None:
    def broken(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        torch._dynamo.graph_break()
        return x * weight

    with pytest.raises(torch._dynamo.exc.Unsupported):
        by_id(replace(OP, native=broken))[BASELINE_ID].outputs(args(8))


@pytest.mark.defence("certified_baseline")
def test_comparison_whose_baseline_recompiles_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python number that grows now and then: Dynamo compiles for each value, a few times, below its limit."""
    quick(monkeypatch)
    calls = {"n": 0}

    def restless(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y: Tensor = OP.native(x=x, weight=weight, eps=eps)
        return y + 0.0 * calls["n"]

    class Counting:
        begun = 0

        def begin(self, arm: str, phase: str, limit_s: float) -> None:
            self.begun += 1
            calls["n"] = self.begun // 12

    run = comparison([], op=replace(OP, native=restless))
    monkeypatch.setattr(run.link, "begin", Counting().begin)
    of = run.run(Task(case=rmsnorm_case(), context=None))
    assert of.status is RunStatus.BASELINE_UNCERTIFIED
    assert "graphs where one was expected" in of.reason
    assert of.timed_arms == ()


def test_comparison_whose_baseline_breaks_the_graph_has_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)

    def broken(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        torch._dynamo.graph_break()
        y: Tensor = OP.native(x=x, weight=weight, eps=eps)
        return y

    of = comparison([hidden_work.fine], op=replace(OP, native=broken)).run(Task(case=rmsnorm_case(), context=None))
    assert of.status is RunStatus.BASELINE_UNCERTIFIED
    assert of.reason.startswith("CRASHED: in build: Unsupported")
    assert arm_of(of, hidden_work.fine).samples_us == ()


@pytest.mark.defence("own_code")
def test_arms_of_one_function_share_no_code() -> None:
    first, second = own_code(OP.native, "a"), own_code(OP.native, "b")
    codes = {first.__code__, second.__code__, OP.native.__code__}
    assert len(codes) == 3
    given = args(4)
    assert torch.equal(first(**given), OP.native(**given))


@pytest.mark.defence("own_code")
def test_one_function_serves_more_shapes_than_dynamo_recompiles() -> None:
    for rows in range(8, 18):
        for arm in by_id().values():
            arm.outputs(args(rows))
            assert certified(arm) is None


def test_twin_asks_for_a_compile_of_its_own() -> None:
    arms = by_id()
    assert (arms[TWIN_ID].role, arms[TWIN_ID].cache_tag) == (Role.TWIN, "twin")
    assert arms[BASELINE_ID].cache_tag == ""
    seen: list[str] = []

    def noting(**given: object) -> tuple[Tensor, ...]:
        seen.append(torch.compiler.config.cache_key_tag)
        return ()

    for name in (BASELINE_ID, TWIN_ID):
        replace(arms[name], call=noting).outputs(args(4))
    assert seen == ["", "twin"]


def test_custom_ops_are_registered_once_and_rewrites_compiled() -> None:
    assert registered_op(wrong_results.honest, OP) is registered_op(wrong_results.honest, OP)
    custom = candidate_arm(wrong_results.honest, OP, None)
    assert (custom.registration, custom.counter, custom.kind) == ("custom_op", None, Kind.TRITON)
    rewrite = candidate_arm(hidden_work.fine, OP, None)
    assert rewrite.registration == "compiled"
    assert rewrite.counter is not None
    inside = candidate_arm(wrong_results.honest, OP, OP.contexts[0])
    assert inside.registration == "custom_op in compiled context"


def test_a_second_kernel_of_one_name_is_refused() -> None:
    registered_op(wrong_results.honest, OP)
    namesake = replace(wrong_results.honest, run=wrong_results.zero_output.run)
    with pytest.raises(ValueError, match=r"rmsnorm: two kernels are called evil\.honest in one process; give one ano"):
        registered_op(namesake, OP)


def test_in_a_context_the_candidate_is_compiled_with_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    case = rmsnorm_case(contexts=("residual_add",))
    of = comparison([hidden_work.fine, wrong_results.zero_output]).run(Task(case=case, context="residual_add"))
    assert of.context == "residual_add"
    assert arm_of(of, hidden_work.fine).status is ArmStatus.OK
    assert arm_of(of, hidden_work.fine).graph_count == 1
    assert arm_of(of, wrong_results.zero_output).status is ArmStatus.GATE_FAILED
    assert set(of.input_fingerprints) == {"x", "weight", "residual"}
