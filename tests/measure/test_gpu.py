"""What only a GPU can show. Run with `pytest -m gpu`; everywhere else these skip and say so."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.measure import environment
from harness.measure.arms import BASELINE_ID, Arm
from harness.measure.clock import EventClock, GraphClock, Hold, clock_for
from harness.measure.controls import read_controls
from harness.op import Candidate
from harness.protocol import Task
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, Cache, Contract, Kind, Method, Role, RunStatus
from tests.rig import arm_of, comparison, rmsnorm_case
from tests.test_isolate import evil_of, real, run

pytestmark = pytest.mark.gpu
CASE = rmsnorm_case({"B": 2, "S": 4096, "D": 1536}, rehearsal={"B": 2, "S": 8, "D": 64})


@pytest.fixture(scope="module")
def evil() -> Any:
    from tests.evil import on_gpu

    return on_gpu


@pytest.fixture(scope="module", autouse=True)
def _on_the_gpu() -> Iterator[None]:
    torch.cuda.init()
    yield
    torch.cuda.empty_cache()


def measured(*candidates: Candidate, **more: Any) -> Measurement:
    device = replace(environment.device("cuda"), **more)
    controls = read_controls(clock_for(device, capturable=True), environment.device("cuda"))
    assert controls.passed, controls.reason
    return comparison(candidates, device=device, controls=controls).run(Task(case=CASE, context=None))


def test_a_host_that_launches_late_is_not_timed() -> None:
    """The blocking kernel is sized for a quick host; then the host takes 3 ms to launch."""
    x = torch.zeros(1, device="cuda")
    clock, hold = GraphClock(), Hold(50.0)

    def launch_late() -> None:
        time.sleep(3e-3)
        x.add_(1)

    assert clock.between(launch_late, hold) < 100
    assert hold.us > 3_000


def test_honest_kernel_is_timed_cold_in_a_graph(evil: Any) -> None:
    of = measured(evil.honest_kernel)
    arm = arm_of(of, evil.honest_kernel)
    assert of.status is RunStatus.MEASURED, of.reason
    assert arm.status is ArmStatus.OK, arm.reason
    assert (of.method, of.cache) == (Method.CUDA_GRAPH, Cache.COLD)
    assert of.rotated_bytes >= 5 * environment.device("cuda").l2_bytes
    assert any("rmsnorm_tile" in kernel for kernel in arm.kernels)
    assert arm.profiler_us is not None
    ours = sorted(us for pair in arm.samples_us for us in pair)[len(arm.samples_us)]
    assert ours == pytest.approx(arm.profiler_us, rel=0.5)


def test_time_behind_another_kernel_is_that_of_the_train_where_nothing_overlaps(evil: Any) -> None:
    of = measured(evil.honest_kernel)
    baseline = next(arm for arm in of.arms if arm.id == BASELINE_ID)
    assert baseline.fenced_us is not None
    ours = sorted(us for pair in baseline.samples_us for us in pair)[len(baseline.samples_us)]
    assert baseline.fenced_us == pytest.approx(ours, rel=0.1, abs=0.3)
    # our kernel lets its successor start early, so behind another kernel it takes no less
    arm = arm_of(of, evil.honest_kernel)
    assert arm.fenced_us is not None
    assert arm.fenced_us > 0.95 * min(min(pair) for pair in arm.samples_us)


def test_what_a_candidate_prepares_outlives_the_capture(evil: Any) -> None:
    arm = arm_of(measured(evil.prepared_kernel, evil.honest_kernel), evil.prepared_kernel)
    assert arm.status is ArmStatus.OK, arm.reason
    assert arm.gate_after is not None
    assert arm.gate_after.passed


def test_launches_on_a_side_stream(evil: Any) -> None:
    arm = arm_of(measured(evil.side_stream), evil.side_stream)
    assert arm.status is ArmStatus.FELL_BACK, (arm.status, arm.reason)
    assert "launches on 2 streams" in arm.reason


@pytest.mark.defence("gate_replay")
def test_kernel_that_is_not_in_the_graph(evil: Any) -> None:
    of = measured(evil.only_before_capture, evil.honest_kernel)
    arm = arm_of(of, evil.only_before_capture)
    assert arm.status is ArmStatus.GATE_FAILED, (arm.status, arm.reason)
    assert arm.reason.startswith("on the replayed path: ")
    assert arm_of(of, evil.honest_kernel).status is ArmStatus.OK


def test_clone_in_the_timed_part_is_reported(evil: Any) -> None:
    of = measured(evil.clones_first, evil.honest_kernel)
    cloning, honest = (arm_of(of, c) for c in (evil.clones_first, evil.honest_kernel))
    assert cloning.status is honest.status is ArmStatus.OK
    assert len(cloning.kernels) == len(honest.kernels) + 1
    assert any("Memcpy" in kernel or "copy" in kernel.lower() for kernel in cloning.kernels)
    assert min(min(pair) for pair in cloning.samples_us) > 1.2 * min(min(pair) for pair in honest.samples_us)


@pytest.mark.defence("engagement")
def test_silent_fall_back(evil: Any) -> None:
    arm = arm_of(measured(evil.falls_back), evil.falls_back)
    assert arm.status is ArmStatus.FELL_BACK
    assert "declared kernel 'never_there' not seen" in arm.reason
    assert arm.samples_us == ()


@pytest.mark.defence("gate_scratch")
def test_autotuning_in_place_runs_on_scratch_and_its_choice_is_recorded(evil: Any) -> None:
    arm = arm_of(measured(evil.tuned_in_place), evil.tuned_in_place)
    assert arm.status is ArmStatus.OK, arm.reason
    assert "BLOCK" in arm.tags["_double_in_place"]


def test_rotation_that_fits_in_l2_is_found_out_by_its_bandwidth(evil: Any) -> None:
    """The device is said to have a 1 MiB L2: one set counts as cold and lies in the real L2."""
    small = rmsnorm_case({"B": 2, "S": 2048, "D": 1536}, rehearsal={"B": 2, "S": 8, "D": 64})
    device = replace(environment.device("cuda"), l2_bytes=1 << 20)
    controls = read_controls(clock_for(device, capturable=True), environment.device("cuda"))
    of = comparison([evil.honest_kernel], device=device, controls=controls).run(Task(case=small, context=None))
    assert of.cache is Cache.COLD
    assert of.status is RunStatus.ENV_UNFIT, (of.status, of.reason)
    assert "the rotation is not cold" in of.reason
    assert of.orders == ()


@pytest.mark.parametrize("clock", [GraphClock, EventClock])
def test_both_clocks_read_nothing_as_nothing_and_agree_on_a_copy(clock: type[GraphClock]) -> None:
    def arm(call: Any) -> Arm:
        return Arm("test", Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, call, "function")

    x = torch.zeros(1 << 26, device="cuda")
    y = torch.empty_like(x)
    nothing = clock().ready(arm(lambda: ()), [{}], 20)
    assert min(nothing.sample_us() for _ in range(5)) < 0.25
    copy = clock().ready(arm(lambda source, target: (target.copy_(source), ())[1]), [{"source": x, "target": y}], 20)
    reads = sorted(copy.sample_us() for _ in range(7))[3]
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(50):
        y.copy_(x)
    stop.record()
    torch.cuda.synchronize()
    assert reads == pytest.approx(start.elapsed_time(stop) * 1e3 / 50, rel=0.05)


@pytest.mark.defence("blame")
@pytest.mark.timeout(400)
def test_illegal_address_is_blamed_on_its_arm_and_the_next_case_is_clean(tmp_path: Path) -> None:
    supervisor = real(tmp_path, Task(case=CASE, context=None), EVIL_CRASHES="illegal_address")
    supervisor.job = supervisor.job.model_copy(update={"device_type": "cuda", "extra": ("tests.evil.on_gpu",)})
    (of,) = run(supervisor)
    assert of.status is RunStatus.MEASURED, of.reason
    found = evil_of(of)
    assert found["illegal_address"].startswith("CRASHED: in gate: "), found
    assert "illegal" in found["illegal_address"] or "unspecified" in found["illegal_address"]
    assert found["honest_kernel"] == "OK: "
