"""A sequence of processes: when it ends, what it survives, and from where it goes on."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from harness import device_lock, worker_line
from harness.e2e.eta import Ahead
from harness.e2e.protocol import CellSettings
from harness.e2e.runner import CellRunner, Outcome
from harness.e2e.select import Cell
from harness.e2e.wirings import wiring_for
from harness.isolate import Progress
from harness.measure.telemetry import Poll, Probe
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus
from harness.store import ProcessStore
from tests.builders import LAPTOP, environment
from tests.e2e.twins import ROOT, workloads
from tests.e2e_builders import CEILING, DYNAMIC, process
from tests.rig import TOLERANCE

K, OTHER = "inhouse.k", "inhouse.other"


class Quiet(Probe):
    """A device that nobody else is on."""

    def poll(self, worker_pid: int) -> Poll:
        return Poll(at_s=0.0)


class Notes(Progress):
    """Keeps what a person would read."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ahead: list[Ahead] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    def record(self, record: ProcessRecord, ahead: Ahead) -> None:
        self.ahead.append(ahead)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Outcome, Notes]]:
    """Runs one cell with processes that only pretend; the store and the device are this test's own."""
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)
    popen = subprocess.Popen

    def spawn(arguments: list[str], **more: Any) -> Any:
        assert arguments[1:3] == ["-m", "harness.e2e.worker"]
        return popen([sys.executable, "-m", "tests.e2e.fake_cell", *arguments[3:]], **more)

    monkeypatch.setattr(worker_line.subprocess, "Popen", spawn)
    workload = workloads()["wan2.1-t2v-1.3b"]
    cell = Cell("rmsnorm", workload, workload.components[0], wiring_for("rmsnorm", "wan", None))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

    def go(
        gains: dict[str, float], *, fresh: bool = False, pinned: dict[str, str] | None = None, budget_s: float = 600.0,
        card: str = "", seconds: float = math.inf, any_card: bool = False, **plan: Any,
    ) -> tuple[Outcome, Notes]:  # fmt: skip
        file = tmp_path / "plan.json"
        file.write_text(json.dumps({"gains": gains, "uuid": f"test-{os.getpid()}{card}", **plan}))
        notes = Notes()
        with CellRunner(
            tmp_path,
            tmp_path / ".bench",
            ProcessStore(tmp_path / "results"),
            "cpu",
            CellSettings(budget_s=budget_s),
            notes,
            checkpoint=str(file),
            until_s=monotonic() + seconds,
            any_card=any_card,
            probe=lambda kind, uuid: Quiet(),
            environment={"PYTHONPATH": path},
        ) as runner:
            asked = tuple(name for name in gains if name != CEILING)
            here = replace(cell, wiring=replace(cell.wiring, pinned=pinned or {}))
            return runner.run(here, TOLERANCE, asked, fresh=fresh, on_record=notes.record), notes

    return go


def numbers(outcome: Outcome) -> list[int]:
    return [record.process for record in outcome.records]


def test_it_ends_when_the_rule_has_decided(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    nothing, _ = run({K: 0.0})
    assert (numbers(nothing), nothing.failure) == ([0, 1], "")
    first, second = nothing.records
    assert (first.p_max, first.sequence) == (None, second.sequence)
    assert second.p_max is not None
    assert second.pairs == first.pairs


def test_it_ends_where_the_budget_does(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    """A process of 20 s and 16 pairs of a second: three and a third fit."""
    outcome, _ = run({K: 1.0}, budget_s=120.0)
    assert numbers(outcome) == [0, 1, 2]
    assert outcome.records[1].p_max == outcome.records[2].p_max == 3


def test_what_may_follow_is_told_after_each_process(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    _, notes = run({K: 1.0}, budget_s=120.0)
    assert [ahead.processes for ahead in notes.ahead] == [2, 1, 0]
    assert notes.ahead[0].seconds == pytest.approx(2 * (20 + 16))


@pytest.mark.defence("e2e_late")
def test_nothing_begins_that_would_not_end_in_time(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    """Unknown cells count as the budget and a quarter; a process of the builders takes 36 s."""
    unknown, _ = run({K: 1.0}, budget_s=120.0, seconds=149.0)
    assert (unknown.records, unknown.failure) == ([], "")
    assert unknown.left.startswith("it takes about 2.5 min and 2.5 are left")
    stopped, _ = run({K: 1.0}, budget_s=120.0, fates={"1": "throttle"})
    assert len(stopped.records) == 2
    late, _ = run({K: 1.0}, budget_s=120.0, seconds=30.0)
    assert numbers(late) == [0]
    assert late.left.startswith("process 1 takes about 0.6 min and 0.")
    known, _ = run({K: 1.0}, budget_s=60.0, fresh=True, seconds=100.0)
    assert known.left.startswith("it takes about 1.8 min and 1.7 are left"), "three of 36 s by the stored process"


@pytest.mark.defence("e2e_nothing_stored")
def test_no_process_begins_for_want_of_time_where_nothing_of_the_cell_is_stored(
    run: Callable[..., tuple[Outcome, Notes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []
    spawn = worker_line.subprocess.Popen

    def counted(arguments: list[str], **more: Any) -> Any:
        started.append(arguments[2])
        return spawn(arguments, **more)

    monkeypatch.setattr(worker_line.subprocess, "Popen", counted)
    workload = workloads()["wan2.1-t2v-1.3b"]
    here = {"op": "rmsnorm", "workload": workload.workload, "component": workload.components[0]}
    on_gpu = process({K: 0.0}, **here)  # type: ignore[arg-type]
    of_other_model = process({K: 0.0}, op="rmsnorm", env=environment(LAPTOP))
    behind = process({K: 0.0}, env=environment(LAPTOP), **here).model_copy(update={"context": "residual"})  # type: ignore[arg-type]
    other_part = here | {"component": workload.components[0].model_copy(update={"id": "decode"})}
    of_other_part = process({K: 0.0}, env=environment(LAPTOP), **other_part)  # type: ignore[arg-type]
    for one in (on_gpu, of_other_model, behind, of_other_part):
        ProcessStore(tmp_path / "results").append(one)
    nothing, _ = run({K: 1.0}, budget_s=120.0, seconds=149.0)
    assert (nothing.records, nothing.failure, started) == ([], "", [])
    assert nothing.left.startswith("it takes about 2.5 min and 2.5 are left")
    finished, _ = run({K: 0.0}, budget_s=120.0)
    assert len(started) == len(finished.records) == 2
    known, _ = run({K: 0.0}, budget_s=120.0, seconds=30.0)
    assert (known.kept, len(started)) == (2, 3), "a started process finds what is finished"


def test_fewer_processes_are_declared_where_the_time_ends_before_the_budget(
    run: Callable[..., tuple[Outcome, Notes]],
) -> None:
    """Eight would fit into the budget; after the first, three and a half fit into the time."""
    pilot, _ = run({K: 1.0}, budget_s=600.0, fates={"1": "refuse"})
    assert numbers(pilot) == [0]
    outcome, _ = run({K: 1.0}, budget_s=600.0, seconds=3.5 * 36)
    assert [record.p_max for record in outcome.records] == [None, 4, 4, 4]


def test_what_another_card_has_finished_counts_where_asked(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    there, _ = run({K: 0.0})
    here, _ = run({K: 0.0}, card="b", any_card=True)
    assert (here.kept, here.records) == (2, there.records)
    half, _ = run({OTHER: 0.0}, fates={"1": "refuse"})
    assert numbers(half) == [0]
    own, _ = run({OTHER: 0.0}, card="b", any_card=True)
    assert (own.kept, numbers(own)) == (0, [0, 1]), "what was broken off there is begun anew"


def test_what_process_0_found_against_a_candidate_holds(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    outcome, _ = run({K: 0.0, OTHER: 0.0}, found={OTHER: "GATE_FAILED"})
    assert [one.arm(OTHER).reason for one in outcome.records] == ["broke", "broke"]  # type: ignore[union-attr]
    assert all(one.arm(OTHER).times_ms == () for one in outcome.records)  # type: ignore[union-attr]


@pytest.mark.defence("e2e_beaten_later")
def test_a_beaten_dynamic_baseline_is_left_out_of_later_processes(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    outcome, _ = run({K: 3.0}, budget_s=120.0, found={DYNAMIC: "BEATEN"})
    assert numbers(outcome) == [0, 1, 2]
    dynamic = [record.arm(DYNAMIC) for record in outcome.records]
    assert [(arm.status, arm.reason, arm.times_ms) for arm in dynamic if arm] == [("BEATEN", "broke", ())] * 3
    again, _ = run({K: 3.0}, budget_s=120.0)
    assert again.kept == 3, "settled against the static one alone"


def test_what_another_op_found_of_the_dynamic_baseline_is_told(
    run: Callable[..., tuple[Outcome, Notes]], tmp_path: Path
) -> None:
    seen, _ = run({K: 3.0}, found={DYNAMIC: "BEATEN"}, compiles_s={DYNAMIC: 9.0})
    other = seen.records[0].model_copy(update={"op": "layernorm"})
    shutil.rmtree(tmp_path / "results")
    ProcessStore(tmp_path / "results").append(other)
    here, _ = run({K: 3.0})
    assert [arm.reason for record in here.records if (arm := record.arm(DYNAMIC))] == [
        "in the cell of layernorm broke"
    ] * len(here.records)


def test_a_sequence_keeps_the_baselines_that_it_began_with(
    run: Callable[..., tuple[Outcome, Notes]], tmp_path: Path
) -> None:
    """Interrupted after process 0, which timed dynamic=True; meanwhile another op's cell finds it beaten."""
    begun, _ = run({K: 3.0}, fates={"1": "throttle"})
    first = begun.records[0]
    other = process(
        {}, op="layernorm", workload=first.workload, env=first.environment, component=first.component,
        statuses={DYNAMIC: ArmStatus.BEATEN},
    )  # fmt: skip
    arms = tuple(arm.model_copy(update={"compile_s": 9.0}) if arm.id == DYNAMIC else arm for arm in other.arms)
    of_first = {"checkpoint": first.checkpoint, "library": first.library, "e2e_sha256": first.e2e_sha256}
    ProcessStore(tmp_path / "results").append(other.model_copy(update={"arms": arms, **of_first}))
    outcome, _ = run({K: 3.0})
    dynamic = [record.arm(DYNAMIC) for record in outcome.records]
    assert outcome.kept == 1
    assert [arm.status for arm in dynamic if arm] == ["OK"] * len(outcome.records)


def test_a_beaten_baselines_compile_is_not_counted_for_later_processes(
    run: Callable[..., tuple[Outcome, Notes]],
) -> None:
    """Process 0 takes 36 s, of which 10 for that compile: four and a half of 26 s fit into 120."""
    plan: dict[str, Any] = {"found": {DYNAMIC: "BEATEN"}, "compiles_s": {DYNAMIC: 10.0}, "budget_s": 120.0}
    pilot, notes = run({K: 1.0}, fates={"1": "refuse"}, **plan)
    assert numbers(pilot) == [0]
    assert (notes.ahead[0].processes, notes.ahead[0].seconds) == (3, pytest.approx(3 * 26))
    late, _ = run({K: 1.0}, seconds=20.0, **plan)
    assert late.left.startswith("process 1 takes about 0.4 min and 0.3 are left")
    short, _ = run({K: 1.0}, seconds=80.0, fresh=True, **plan)
    assert short.left.startswith("it takes about 1.5 min and 1.3 are left"), "36 and two of 26 s"
    whole, _ = run({K: 1.0}, **plan)
    assert [record.p_max for record in whole.records] == [None, 4, 4, 4]


@pytest.mark.defence("e2e_left_out")
def test_a_decided_candidate_is_left_out_and_the_open_one_goes_on(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    """K is NO_WIN after two processes, OTHER never; a pair of five arms takes a second, so one of four 0.8."""
    gains = {K: 0.0, OTHER: 1.0}
    stopped, notes = run(gains, budget_s=150.0, fates={"3": "throttle"})
    assert "process 3: THROTTLED" in stopped.failure
    first, second, third = stopped.records[:3]
    assert [len(one.arm(K).times_ms) for one in (first, second, third)] == [8, 8, 0]  # type: ignore[union-attr]
    assert (third.arm(K).status, third.arm(K).reason) == ("DECIDED", "the rule said NO_WIN after process 1")  # type: ignore[union-attr]
    assert third.arm(OTHER).times_ms  # type: ignore[union-attr]
    assert [ahead.seconds for ahead in notes.ahead[:3]] == pytest.approx([3 * 36, 2 * (20 + 16 * 0.8), 20 + 16 * 0.8])
    resumed, _ = run(gains, budget_s=150.0)
    assert (resumed.kept, numbers(resumed)) == (3, [0, 1, 2, 3])
    last = resumed.records[3]
    assert (last.arm(K).status, last.arm(K).reason) == ("DECIDED", "the rule said NO_WIN after process 1")  # type: ignore[union-attr]
    again, _ = run(gains, budget_s=150.0)
    assert again.kept == 4


def test_the_sequence_ends_when_the_last_open_candidate_is_decided(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    outcome, _ = run({K: 0.0, OTHER: 5.0})
    assert numbers(outcome) == [0, 1, 2], "NO_WIN after two, WIN after three of eight"
    assert outcome.records[2].timed_arms == ("torch.compile", DYNAMIC, "torch.compile_twin", OTHER)


def test_it_goes_on_from_the_store_and_keeps_what_is_finished(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    stopped, _ = run({K: 1.0}, budget_s=120.0, fates={"2": "throttle"})
    assert "process 2: THROTTLED" in stopped.failure
    resumed, _ = run({K: 1.0}, budget_s=120.0)
    assert resumed.kept == 2
    assert numbers(resumed)[:3] == [0, 1, 2]
    assert len({record.sequence for record in resumed.records}) == 1
    again, _ = run({K: 1.0}, budget_s=120.0)
    assert again.kept == len(again.records) == len(resumed.records)
    fresh, _ = run({K: 1.0}, budget_s=120.0, fresh=True)
    assert fresh.kept == 0
    assert fresh.records[0].sequence != resumed.records[0].sequence
    changed, _ = run({K: 1.0}, budget_s=120.0, e2e="other sources")
    assert changed.kept == 0


def test_a_candidate_that_kills_the_process_is_left_out_and_the_rest_measured(
    run: Callable[..., tuple[Outcome, Notes]],
) -> None:
    outcome, notes = run({K: 0.0, OTHER: 0.0}, fates={"0": f"die {OTHER}"})
    assert (numbers(outcome), outcome.failure) == ([0, 1], "")
    arm = outcome.records[0].arm(OTHER)
    assert arm is not None
    assert arm.status == "CRASHED"
    assert any("exit code 3" in text for text in notes.texts)
    assert any(text.endswith(f"{OTHER} is left out from here on") for text in notes.texts)


def test_a_model_that_dies_by_itself_ends_the_cell(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    outcome, _ = run({K: 0.0}, fates={"0": "die nobody"})
    assert outcome.records == []
    assert "exit code 3" in outcome.failure


def test_a_refused_cell_says_why(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    outcome, _ = run({K: 0.0}, fates={"0": "refuse"})
    assert outcome.failure == "the wiring sees 7 calls where the model makes 8"


@pytest.mark.defence("e2e_drift")
def test_upstream_that_has_changed_is_told_once(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    pinned = {"lib.model:Block.forward": "aaaa", "lib.model:Norm.forward": "bbbb"}
    _, notes = run({K: 0.0}, pinned=pinned, upstream={"lib.model:Block.forward": "aaaa", "lib.model:Norm.forward": "x"})
    told = [text for text in notes.texts if "is not what the wiring was written for" in text]
    assert len(told) == 1
    assert "lib.model:Norm.forward" in told[0]
