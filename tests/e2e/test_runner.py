"""A sequence of processes: when it ends, what it survives, and from where it goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import device_lock, worker_line
from harness.e2e.protocol import CellSettings
from harness.e2e.runner import CellRunner, Outcome
from harness.e2e.select import Cell
from harness.e2e.wirings import wiring_for
from harness.isolate import Progress
from harness.measure.telemetry import Poll, Probe
from harness.store import ProcessStore
from tests.e2e.twins import ROOT, workloads
from tests.e2e_builders import CEILING
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

    def note(self, text: str) -> None:
        self.texts.append(text)


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
        **plan: Any,
    ) -> tuple[Outcome, Notes]:  # fmt: skip
        file = tmp_path / "plan.json"
        file.write_text(json.dumps({"gains": gains, "uuid": f"test-{os.getpid()}", **plan}))
        notes = Notes()
        with CellRunner(
            tmp_path,
            tmp_path / ".bench",
            ProcessStore(tmp_path / "results"),
            "cpu",
            CellSettings(budget_s=budget_s),
            notes,
            checkpoint=str(file),
            probe=lambda kind, uuid: Quiet(),
            environment={"PYTHONPATH": path},
        ) as runner:
            asked = tuple(name for name in gains if name != CEILING)
            here = replace(cell, wiring=replace(cell.wiring, pinned=pinned or {}))
            return runner.run(here, TOLERANCE, asked, fresh=fresh, on_record=lambda record: None), notes

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


def test_it_goes_on_from_the_store_and_keeps_what_is_finished(run: Callable[..., tuple[Outcome, Notes]]) -> None:
    stopped, _ = run({K: 1.0}, fates={"2": "throttle"})
    assert "process 2: THROTTLED" in stopped.failure
    resumed, _ = run({K: 1.0})
    assert resumed.kept == 2
    assert numbers(resumed)[:3] == [0, 1, 2]
    assert len({record.sequence for record in resumed.records}) == 1
    again, _ = run({K: 1.0})
    assert again.kept == len(again.records) == len(resumed.records)
    fresh, _ = run({K: 1.0}, fresh=True)
    assert fresh.kept == 0
    assert fresh.records[0].sequence != resumed.records[0].sequence
    changed, _ = run({K: 1.0}, e2e="other sources")
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
