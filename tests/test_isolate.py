"""Whoever kills a worker is blamed, alone, and the others are measured; the device is never shared; nothing is left.

Most tests run `tests.fake_worker`, which dies as told in a fraction of a second; the real worker is at the end.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import device_lock, isolate, worker_line
from harness.errors import UnfitError
from harness.isolate import Progress, Supervisor
from harness.measure.telemetry import Poll, Probe
from harness.protocol import Job, Settings, Task
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.builders import BASELINE, LAPTOP, TWIN, Arm, case, environment, measurement
from tests.rig import TOLERANCE, rmsnorm_case

CANDIDATES = ("evil.a", "good.b", "good.c", "good.d")


class Quiet(Probe):
    """Nobody else on the machine."""

    def poll(self, worker_pid: int) -> Poll:
        """Nothing to see."""
        return Poll(at_s=time.monotonic())


class Notes(Progress):
    """Remembers the notes and when blocks were asked about."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, str, str]] = []

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self.notes.append(text)

    def step(self, task: str, arm: str, phase: str) -> None:
        """See `Progress.step`."""
        self.steps.append((task, arm, phase))


@pytest.fixture(autouse=True)
def _locks_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run beside the tests does not stop them."""
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Supervisor]:
    """Makes supervisors whose workers are fake; the device is this test's own."""
    popen = subprocess.Popen

    def spawn(arguments: list[str], **more: Any) -> Any:
        assert arguments[1:3] == ["-m", "harness.worker"]
        return popen([sys.executable, "-m", "tests.fake_worker", *arguments[3:]], **more)

    monkeypatch.setattr(worker_line.subprocess, "Popen", spawn)
    device = LAPTOP.model_copy(update={"uuid": f"test-{os.getpid()}-{tmp_path.name}"})
    template = measurement({name: Arm() for name in CANDIDATES}, env=environment(device), blocks=8)
    path = tmp_path / "template.json"
    path.write_text(template.model_dump_json())

    def make(
        *deaths: str, tasks: tuple[Task, ...] | None = None, probe: Probe | None = None, start: str | None = None
    ) -> Supervisor:
        job = Job(
            root=str(tmp_path),
            op="groupnorm_silu",
            device_type="cpu",
            tolerance=TOLERANCE,
            tasks=tasks or (Task(case=case("one"), context=None),),
            settings=Settings(),
            extra=(start or str(path), *deaths),
        )
        return Supervisor(job, tmp_path / "work", Notes(), probe=lambda kind, uuid: probe or Quiet())

    return make


def run(supervisor: Supervisor) -> list[Measurement]:
    with supervisor:
        supervisor.hello()
        return list(supervisor.run(list(supervisor.job.tasks)))


def statuses(of: Measurement) -> dict[str, ArmStatus]:
    return {arm.id: arm.status for arm in of.arms}


def only_guilty(of: Measurement, guilty: str = "evil.a") -> str:
    """Everyone but the guilty arm was measured; why the guilty one was not."""
    expected = dict.fromkeys((BASELINE, TWIN, *CANDIDATES), ArmStatus.OK)
    found = statuses(of)
    expected[guilty] = found[guilty]
    assert found == expected
    assert of.status is RunStatus.MEASURED
    assert guilty not in of.timed_arms
    record = of.arm(guilty)
    assert record is not None
    assert record.samples_us == ()
    return f"{record.status}: {record.reason}"


HOW = {
    "segv": "killed by SIGSEGV",
    "abort": "killed by SIGABRT",
    "kill": "killed by SIGKILL",
    "exit0": "exit code 0",
    "exit3": "exit code 3",
}


@pytest.mark.defence("blame")
@pytest.mark.parametrize(
    ("phase", "death"),
    [
        pytest.param(phase, death, marks=() if phase == "gate" or death == "segv" else pytest.mark.slow)
        for phase in ("build", "gate", "timing")
        for death in HOW
    ],
)
def test_death_is_blamed_on_the_one_arm_that_brings_it(fake: Callable[..., Supervisor], phase: str, death: str) -> None:
    (of,) = run(fake(f"evil.a:{phase}:{death}"))
    assert only_guilty(of).startswith(f"CRASHED: in {phase}: {HOW[death]} (about to die: {death}")


@pytest.mark.defence("time_limit")
@pytest.mark.parametrize("phase", ["gate", "timing"])
def test_hang_is_ended_at_its_limit_with_its_children(
    fake: Callable[..., Supervisor], phase: str, tmp_path: Path
) -> None:
    (of,) = run(fake(f"evil.a:{phase}:hang"))
    assert only_guilty(of) == f"TIMED_OUT: in {phase}: no sign of life within the time limit"
    children = [
        int(pid) for log in (tmp_path / "work/logs").iterdir() for pid in re.findall("child (.*)", log.read_text())
    ]
    assert len(children) >= 2
    assert not any(_alive(pid) for pid in children)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.defence("blame")
def test_lost_device_is_blamed_on_the_arm_that_lost_it(fake: Callable[..., Supervisor]) -> None:
    (of,) = run(fake("good.c:gate:lost"))
    assert only_guilty(of, "good.c") == "CRASHED: in gate: CUDA error: an illegal memory access was encountered"


@pytest.mark.defence("blame")
def test_two_culprits_are_both_found(fake: Callable[..., Supervisor]) -> None:
    (of,) = run(fake("evil.a:timing:segv", "good.d:timing:exit3"))
    found = statuses(of)
    assert {name for name, status in found.items() if status is not ArmStatus.OK} == {"evil.a", "good.d"}
    assert of.timed_arms == (BASELINE, TWIN, "good.b", "good.c")


def test_the_next_task_and_the_one_before_are_untouched(fake: Callable[..., Supervisor]) -> None:
    tasks = tuple(Task(case=case(name), context=None) for name in ("one", "two", "three"))
    supervisor = fake("evil.a@two:gate:segv", tasks=tasks)
    of = run(supervisor)
    assert [m.case.id for m in of] == ["one", "two", "three"]
    assert [statuses(m)["evil.a"] for m in of] == [ArmStatus.OK, ArmStatus.CRASHED, ArmStatus.OK]
    assert isinstance(supervisor.progress, Notes)
    assert [step[0] for step in supervisor.progress.steps].count("one") == 2 * 6 + 1, "the first task ran once"


def test_a_crash_that_does_not_come_again_costs_nobody_anything(
    fake: Callable[..., Supervisor], tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    (of,) = run(fake(f"evil.a:gate:segv:{flag}"))
    assert set(statuses(of).values()) == {ArmStatus.OK}
    assert not flag.exists()


def test_two_arms_that_only_together_kill_are_both_kept_out_of_the_verdict(fake: Callable[..., Supervisor]) -> None:
    (of,) = run(fake("evil.a+good.d:timing:segv"))
    assert of.status is RunStatus.CRASHED
    assert of.reason.endswith("no single candidate does it alone")
    assert of.arms == ()


def test_nobody_is_blamed_where_nothing_more_can_be_written(
    fake: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, else_: str) -> None:
        raise UnfitError(f"{folder}: cannot be written (No space left on device); {else_}")

    monkeypatch.setattr(isolate, "require_writable", full)
    with pytest.raises(
        UnfitError, match=r"logs: cannot be written \(No space left .*; the worker of one died; what was"
    ):
        run(fake("torch.compile:build:segv"))


def test_a_baseline_that_dies_leaves_a_status_and_the_run_goes_on(fake: Callable[..., Supervisor]) -> None:
    tasks = tuple(Task(case=case(name), context=None) for name in ("one", "two"))
    first, second = run(fake("torch.compile@one:build:segv", tasks=tasks))
    assert first.status is RunStatus.CRASHED
    assert first.reason.startswith("torch.compile in build: in build: killed by SIGSEGV")
    assert second.status is RunStatus.MEASURED


@pytest.mark.defence("device_lock")
def test_one_run_at_a_time_on_a_device(fake: Callable[..., Supervisor]) -> None:
    with fake() as first:
        first.hello()
        with fake() as second, pytest.raises(UnfitError, match="another run of this harness holds the device"):
            second.hello()
    with fake() as third:
        third.hello()


@pytest.mark.defence("device_lock_first")
def test_lock_is_asked_for_before_a_worker_is_started(
    fake: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that merely starts would be a foreign process to the run that is on the device."""
    monkeypatch.setattr(isolate, "expected_uuid", lambda device_type, rank: "the-device")
    with fake() as first, fake() as second:
        first._lock.hold("the-device")
        with pytest.raises(UnfitError, match="another run of this harness holds the device the-device"):
            second.hello()
        assert second._worker is None
        assert not (second._logs).exists()


def test_device_found_by_the_worker_is_locked_though_another_was_expected(
    fake: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolate, "expected_uuid", lambda device_type, rank: None)
    with fake() as first:
        first.hello()
        monkeypatch.setattr(isolate, "expected_uuid", lambda device_type, rank: "somewhere else")
        with fake() as second, pytest.raises(UnfitError, match="another run of this harness holds the device test-"):
            second.hello()


def test_controls_that_fail_stop_the_run(fake: Callable[..., Supervisor]) -> None:
    with pytest.raises(UnfitError, match=r"does nothing reads 9\.00 µs"):
        run(fake("unfit"))


def test_worker_that_does_not_start_says_why_and_where(fake: Callable[..., Supervisor]) -> None:
    with pytest.raises(UnfitError, match=r"did not start: no module named flux_capacitor \(log: .*\.log\)"):
        run(fake(start="does not start"))


@pytest.mark.defence("foreign_process")
def test_device_with_somebody_else_on_it_is_refused(fake: Callable[..., Supervisor]) -> None:
    class Crowded(Probe):
        def poll(self, worker_pid: int) -> Poll:
            return Poll(at_s=time.monotonic(), pids=frozenset({worker_pid, 4242}))

    with pytest.raises(UnfitError, match="1 other compute processes"):
        run(fake(probe=Crowded()))


class Interrupting(Notes):
    """Ctrl-C as soon as the first arm is touched."""

    def step(self, task: str, arm: str, phase: str) -> None:
        """See `Progress.step`."""
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """A suite that a script runs in the background inherits SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_interrupt_ends_the_worker_and_frees_the_device(fake: Callable[..., Supervisor], tmp_path: Path) -> None:
    supervisor = fake("torch.compile:build:hang")
    supervisor.progress = Interrupting()
    started: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        _run_noting_the_worker(supervisor, started)
    assert started
    assert not _alive(started[0])
    with fake() as other:
        other.hello()


def _run_noting_the_worker(supervisor: Supervisor, started: list[int]) -> None:
    with supervisor:
        supervisor.hello()
        assert supervisor._worker is not None
        started.append(supervisor._worker.process.pid)
        list(supervisor.run(list(supervisor.job.tasks)))


# -- the real worker ---------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
ROOMY = rmsnorm_case({"B": 2, "S": 256, "D": 1024}, rehearsal={"B": 1, "S": 4, "D": 64})
"""Large enough that ten sets of it are cold in a real cache, so that a sample is short."""


def real(tmp_path: Path, *tasks: Task, **environment: str) -> Supervisor:
    """A supervisor of the real worker with the crashing candidates of `tests.evil`."""
    job = Job(
        root=str(ROOT),
        op="rmsnorm",
        device_type="cpu",
        tolerance=TOLERANCE,
        tasks=tasks,
        settings=Settings(seconds_per_arm=0.05),
        extra=("tests.evil.crashing",),
    )
    outer = os.environ.get("PYTHONPATH")  # on a GPU host some packages come from there
    path = os.pathsep.join(filter(None, (str(ROOT / "tests/worker_site"), str(ROOT), outer)))
    return Supervisor(
        job,
        tmp_path / "work",
        Notes(),
        probe=lambda kind, uuid: Quiet(),
        environment={
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".bench/cache/tests"),
            **environment,
        },
    )


def evil_alone(*names: str) -> Task:
    """The roomy case with these of `tests.evil` alone: the kernels of the op itself are others' to test."""
    return Task(case=ROOMY, context=None, only=frozenset(f"evil.{name}" for name in names))


def evil_of(of: Measurement) -> dict[str, str]:
    return {
        arm.id.removeprefix("evil."): f"{arm.status}: {arm.reason}" for arm in of.arms if arm.id.startswith("evil.")
    }


@pytest.mark.defence("blame")
@pytest.mark.timeout(280)
def test_real_worker_survives_its_candidates(tmp_path: Path) -> None:
    """A segmentation fault in the gate, exceptions and exhausted memory: each on its own arm, the honest ones pass."""
    task = evil_alone("honest", "honest_rewrite", "raises", "out_of_memory", "segv_in_gate")
    (of,) = run(real(tmp_path, task, EVIL_CRASHES="segv_in_gate"))
    assert of.status is RunStatus.MEASURED, of.reason
    found = evil_of(of)
    assert found["segv_in_gate"].startswith("CRASHED: in gate: killed by SIGSEGV")
    assert found["raises"] == "CRASHED: in contract: ValueError: boom"
    assert found["out_of_memory"].startswith("OUT_OF_MEMORY: in contract: ")
    assert found["honest"].startswith("REHEARSED")
    assert found["honest_rewrite"] == "OK: "
    assert BASELINE in of.timed_arms


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("death", ["exits_in_build", "segv_in_timing", "hangs_in_timing", "aborts_in_gate"])
def test_real_worker_dies_in_other_ways(tmp_path: Path, death: str) -> None:
    limits = {"HARNESS_TEST_LIMIT_S": "20"} if death.startswith("hangs") else {}
    task = evil_alone("honest", "honest_rewrite", death)
    (of,) = run(real(tmp_path, task, EVIL_CRASHES=death, **limits))
    assert of.status is RunStatus.MEASURED, of.reason
    expected = {
        "exits_in_build": "CRASHED: in contract: exit code 0",
        "segv_in_timing": "CRASHED: in timing: killed by SIGSEGV",
        "hangs_in_timing": "TIMED_OUT: in timing: no sign of life within the time limit",
        "aborts_in_gate": "CRASHED: in gate: killed by SIGABRT",
    }
    assert evil_of(of)[death].startswith(expected[death])
    assert evil_of(of)["honest_rewrite"] == "OK: "


@pytest.mark.defence("certified_baseline")
@pytest.mark.timeout(280)
def test_real_worker_with_dynamo_switched_off_has_no_baseline(tmp_path: Path) -> None:
    (of,) = run(real(tmp_path, evil_alone("honest"), TORCHDYNAMO_DISABLE="1"))
    assert of.status is RunStatus.BASELINE_UNCERTIFIED
    assert "torch.compile ran nothing: it fell back to eager" in of.reason
    assert of.orders == ()
