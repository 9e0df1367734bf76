"""What hides in the timed path: work that stops, results remembered, work done elsewhere, a clock that lies."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from candidates.rmsnorm.op import OP
from harness.measure import sampler, timing
from harness.measure.arms import BASELINE_ID, CONTROL_ID, NATIVE_ID, TWIN_ID, Arm
from harness.measure.clock import Timed, WallClock
from harness.op import Args, Candidate
from harness.schema.vocabulary import ArmStatus, Cache, RunStatus
from tests.evil import hidden_work as evil
from tests.rig import CONTROLS, CPU, StubLink, arm_of, comparison, measured, quick, rmsnorm_case


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    evil.counts.clear()


def refused(candidate: Candidate, status: ArmStatus, reason: str) -> None:
    """The candidate is out for that reason; an honest rewrite beside it is timed."""
    of = measured(candidate, evil.fine)
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (status, True), (arm.status, arm.reason)
    assert arm_of(of, evil.fine).status is ArmStatus.OK, arm_of(of, evil.fine).reason
    assert len(arm_of(of, evil.fine).samples_us) == len(of.orders) >= sampler.REHEARSAL_BLOCKS
    assert of.status is RunStatus.MEASURED, of.reason


@pytest.mark.defence("gate_after")
def test_work_that_stops_during_the_timing() -> None:
    refused(evil.stops_working, ArmStatus.GATE_FAILED, "after timing: ")


@pytest.mark.defence("replay_few_changes")
def test_result_remembered_until_an_element_changes() -> None:
    refused(evil.cached_by_content, ArmStatus.GATE_FAILED, "on the replayed path: ")


@pytest.mark.defence("replay_second")
def test_result_remembered_until_the_input_changes() -> None:
    evil.counts.clear()
    refused(evil.cached_by_all_content, ArmStatus.GATE_FAILED, "on the replayed path: ")


@pytest.mark.defence("gate_timed_callable")
def test_right_eager_and_wrong_compiled() -> None:
    refused(evil.wrong_when_compiled, ArmStatus.GATE_FAILED, "normal: ")


@pytest.mark.defence("engagement")
def test_declared_kernel_that_never_ran() -> None:
    refused(evil.never_launches, ArmStatus.FELL_BACK, "declared kernel 'a_kernel_that_is_not_there' not seen")


@pytest.mark.defence("replay_new_activations")
def test_work_hidden_in_prepare() -> None:
    refused(evil.prepares_result, ArmStatus.GATE_FAILED, "on the replayed path: ")


def test_prepare_of_a_weight_is_honest() -> None:
    arm = arm_of(measured(evil.prepares_weight), evil.prepares_weight)
    assert arm.status is ArmStatus.OK, arm.reason


def test_graph_break_in_a_rewrite() -> None:
    refused(evil.breaks_graph, ArmStatus.CRASHED, "in build: Unsupported")


class _SkippingClock(WallClock):
    """As a CUDA graph that holds none of an arm's launches: outputs are those of the capture, replays do nothing."""

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        timed = super().ready(arm, sets, launches)
        if arm.candidate is None:
            return timed
        outputs = [arm.outputs(args) for args in sets]
        return replace(timed, outputs=outputs, replay=lambda: None, sample_us=lambda: 1.0)


@pytest.mark.defence("gate_replay")
def test_work_captured_once_and_skipped_on_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "team_clock", lambda device, team, *, capturable: _SkippingClock())
    of = measured(evil.fine)
    arm = arm_of(of, evil.fine)
    assert arm.status is ArmStatus.GATE_FAILED
    assert arm.reason.startswith("on the replayed path: ")
    assert "NaN or Inf" in arm.reason
    assert arm.samples_us == ()
    assert of.timed_arms == (NATIVE_ID, BASELINE_ID, CONTROL_ID, TWIN_ID)


@pytest.mark.defence("restore_inputs")
def test_in_place_candidate_gets_fresh_inputs_at_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: dict[str, int] = {}

    class Spying(WallClock):
        def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
            inputs[arm.id] = len({args["x"].data_ptr() for args in sets})
            return super().ready(arm, sets, launches)

    monkeypatch.setattr(timing, "team_clock", lambda device, team, *, capturable: Spying())
    of = measured(evil.in_place)
    arm = arm_of(of, evil.in_place)
    assert arm.status is ArmStatus.OK, arm.reason
    assert arm.gate_after is not None
    assert arm.gate_after.passed
    assert inputs[arm.id] == arm.launches > of.rotation
    assert inputs[BASELINE_ID] == of.rotation, "what leaves its inputs alone keeps outputs for no more than that"


@pytest.mark.defence("restore_inputs")
def test_every_arm_starts_every_sample_from_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore is outside the timed part and the same for all arms."""
    seen: dict[str, set[float]] = {}
    ready = WallClock.ready

    def spying(self: WallClock, arm: Arm, sets: list[Args], launches: int) -> Timed:
        timed = ready(self, arm, sets, launches)
        if "x" not in sets[0]:
            return timed

        def sample() -> float:
            seen.setdefault(arm.id, set()).update(args["x"].float().sum().item() for args in sets)
            return timed.sample_us()

        return replace(timed, sample_us=sample)

    monkeypatch.setattr(WallClock, "ready", spying)
    measured(evil.in_place, evil.fine)
    assert len(seen) == 6
    assert {arm: len(values) for arm, values in seen.items()} == dict.fromkeys(seen, 1)
    assert len(set(map(frozenset, seen.values()))) == 1


@pytest.mark.defence("faster_than_memory")
def test_bytes_faster_than_any_copy() -> None:
    """An op that says it moves a hundred times the bytes it does: no arm can have moved them."""
    boastful = replace(OP, bytes_moved=lambda case: 1000 * OP.bytes_moved(case))
    of = measured(evil.fine, op=boastful, controls=CONTROLS.model_copy(update={"copy_bytes_per_us": 1.0}))
    assert of.cache is Cache.COLD
    assert arm_of(of, evil.fine).status is ArmStatus.FASTER_THAN_MEMORY
    assert of.status is RunStatus.BASELINE_UNCERTIFIED
    assert "x the copy's" in of.reason


@pytest.mark.defence("tampered")
@pytest.mark.parametrize("name", ["perf_counter_ns", "perf_counter"])
def test_patched_timer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: Callable[[], int] = lambda: 0  # noqa: E731
    monkeypatch.setattr(time, name, frozen)
    of = measured(evil.fine)
    assert arm_of(of, evil.fine).status is ArmStatus.GATE_FAILED
    assert f"time.{name} was replaced in this process" in arm_of(of, evil.fine).reason
    assert of.status is not RunStatus.MEASURED
    assert min(min(pair) for pair in arm_of(of, evil.fine).samples_us) > 0.5, "the clock's own timer still runs"


@pytest.mark.defence("tampered")
def test_patched_binding_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.measure import clock

    real = time.perf_counter_ns
    monkeypatch.setattr(clock, "_perf_counter_ns", lambda: real() // 2)
    of = measured(evil.fine)
    assert "harness.measure.clock._perf_counter_ns was replaced" in arm_of(of, evil.fine).reason


@pytest.mark.defence("cold_count")
def test_rotation_that_is_not_cold_is_never_called_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that share their storage: one set is touched however many there are."""
    monkeypatch.setattr("harness.measure.clock.copied_args", lambda args: args)
    with pytest.raises(AssertionError, match="bytes rotate"):
        measured(evil.fine)


def test_small_cache_is_measured_cold_and_a_huge_one_says_warm() -> None:
    assert measured(evil.fine).cache is Cache.COLD
    assert measured(evil.fine, device=replace(CPU, l2_bytes=1 << 30)).cache is Cache.WARM


@pytest.mark.defence("block_void")
def test_blocks_void_for_ever_are_a_status_never_a_number() -> None:
    link = StubLink(void=lambda start_s, stop_s: "hardware thermal slowdown")
    of = measured(evil.fine, link=link)
    assert of.status is RunStatus.THROTTLED
    assert of.reason == "10 blocks void, the last for: hardware thermal slowdown"
    assert of.orders == ()
    assert of.telemetry.blocks_void == 10


def test_a_void_block_is_measured_again() -> None:
    asked: list[float] = []

    def third(start_s: float, stop_s: float) -> str:
        asked.append(stop_s - start_s)
        return "foreign process 7 on the GPU" if len(asked) == 3 else ""

    of = measured(evil.fine, link=StubLink(void=third))
    assert of.status is RunStatus.MEASURED
    assert of.telemetry.blocks_void == 1
    assert len(of.orders) == len(asked) - 1
    assert all(len(arm_of(of, arm).samples_us) == len(of.orders) for arm in of.timed_arms)


@pytest.mark.defence("own_code")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["small first", "large first"])
def test_two_shapes_in_one_process_do_not_disturb_each_other(order: tuple[int, int]) -> None:
    """Nine shapes in all, one more than Dynamo recompiles one code object for."""
    from harness.protocol import Task

    cases = [rmsnorm_case({"T": 8 + size, "D": 64}) for size in (0, 120)]
    others = [rmsnorm_case({"T": 9 + size, "D": 64}) for size in range(7)]
    run = comparison([evil.fine])
    for case in [*(cases[i] for i in order), *others]:
        of = run.run(Task(case=case, context=None, trial=True))
        assert of.status is RunStatus.MEASURED, of.reason
        assert {arm.graph_count for arm in of.arms if arm.id != NATIVE_ID} == {1}
        assert arm_of(of, evil.fine).status is ArmStatus.OK
        assert torch.isfinite(torch.tensor(arm_of(of, evil.fine).samples_us)).all()
