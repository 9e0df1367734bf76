"""A night on a toy project: comparisons and cells are made up, all between them is real."""

import time
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import microbench
from harness.e2e import command as cells_command
from harness.errors import UnfitError, UserError
from harness.nightly import due
from harness.nightly import run as night_run
from harness.nightly.budget import Budget, BudgetSpent
from harness.nightly.due import Card
from harness.nightly.estimates import Cost
from harness.nightly.plan import State, Work
from harness.nightly.record import Ended, Night, Stage, load, now
from harness.nightly.run import NightRun, Request
from harness.schema.manifest import Manifest, load_manifests
from harness.store import Store
from harness.verdict import present
from tests.builders import LAPTOP, Arm, environment, measurement
from tests.test_cli import project

CELL = "toy-model/step"


@dataclass
class Toy:
    """What happens in the night."""

    root: Path
    begun: list[str] = field(default_factory=list)
    breaks: dict[str, BaseException] = field(default_factory=dict)
    """By case or cell: raised where it would be measured."""
    cells: list[Work] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def manifests(self) -> dict[str, Manifest]:
        return load_manifests(self.root / "shapes")

    def night(self, minutes: float = 10.0) -> Night:
        request = Request(
            minutes, "cpu", self.manifests, cell_budget_s=60.0, unusable=self.unusable, problems=self.problems
        )
        console = Console(file=StringIO())
        return NightRun(request, self.root, console, console).run()

    def bench(self, manifest: Manifest, *_: Any, **how: Any) -> microbench.Outcome:
        tasks = microbench.tasks_of(manifest, "cpu", how["selection"])
        for task in tasks:
            self.begun.append(task.case.id)
            if task.case.id in self.breaks:
                raise self.breaks[task.case.id]
            env = environment(LAPTOP, present(self.root, self.manifests).op_sha256["toy"])
            one = measurement({"inhouse.flipped": Arm()}, op="toy", of=task.case, env=env, started_at=now())
            Store(self.root / "results").append(one)
            how["on_measured"](one)
        return microbench.Outcome([], 0, ())

    def cell(self, request: cells_command.Request, *_: Any) -> cells_command.Ran:
        self.begun.append(request.models[0])
        if request.models[0] in self.breaks:
            raise self.breaks[request.models[0]]
        return cells_command.Ran(list(self.failures), list(self.left))

    def some_nights_ago(self) -> None:
        """What was measured was measured then, and that night's file is gone."""
        store = Store(self.root / "results")
        measured = [one.measurement for one in store.load()]
        for file in (*(self.root / "results").glob("*/toy.jsonl"), only_file(self)):
            file.unlink()
        for one in measured:
            store.append(one.model_copy(update={"started_at": "2026-01-01T02:00:00+00:00"}))
        self.begun = []


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy(project(tmp_path, cases=3))
    (tmp_path / "shapes/workloads").mkdir()
    monkeypatch.setattr(night_run, "expected_uuid", lambda device_type: LAPTOP.uuid)
    monkeypatch.setattr(night_run, "bench", toy.bench)
    monkeypatch.setattr(cells_command, "run", toy.cell)
    ended = {Ended.DONE, Ended.FAILED}

    def cells(card: Card, night: Night, budget_s: float) -> tuple[list[Work], list[str]]:
        done = {piece.what for piece in night.pieces if piece.stage is Stage.E2E and piece.ended in ended}
        return [work for work in toy.cells if work.id not in done], []

    monkeypatch.setattr(Card, "cells", cells)
    return toy


def pieces(night: Night) -> list[tuple[str, str, str]]:
    return [(str(piece.stage), piece.what, str(piece.ended)) for piece in night.pieces]


def only_file(toy: Toy) -> Path:
    (file,) = (toy.root / "results/nightly").glob("*.json")
    return file


def test_a_night_measures_what_is_due_then_its_cells_and_says_so(toy: Toy) -> None:
    toy.cells = [Work("toy", CELL, State.NEVER, True, (Cost(30.0),))]
    night = toy.night()
    assert toy.begun == ["t8", "t9", "t10", CELL]
    assert pieces(night) == [("µbench", "3 cases", "done"), ("end to end", CELL, "done")]
    assert night.pieces[0].states == {State.NEVER: 3}
    assert (night.pieces[0].measured, night.device) == (3, "Fake CPU")
    assert (night.calls[0].ended, night.failures) == ("finished", [])
    assert load(only_file(toy)) == night
    assert (toy.root / "reports/matrix.md").exists()


@pytest.mark.defence("nightly_resume")
def test_an_interrupted_night_goes_on_from_there(toy: Toy) -> None:
    toy.breaks = {"t9": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        toy.night()
    stopped = load(only_file(toy))
    assert pieces(stopped)[0] == ("µbench", "3 cases", "cut")
    assert stopped.calls[0].ended == "interrupted"
    assert (toy.root / "reports/matrix.md").exists(), "what is stored is decided also then"
    toy.breaks, toy.begun = {}, []
    night = toy.night()
    assert toy.begun == ["t9", "t10"], "what this night has measured is not measured again"
    assert [call.ended for call in night.calls] == ["interrupted", "finished"]
    toy.begun = []
    assert toy.night().pieces == night.pieces
    assert toy.begun == []


def test_the_next_night_measures_again_for_the_history(toy: Toy) -> None:
    toy.night()
    toy.some_nights_ago()
    night = toy.night()
    assert toy.begun == ["t8", "t9", "t10"]
    assert night.pieces[0].states == {State.MEASURED: 3}
    source = toy.root / "candidates/toy/mine.py"
    source.write_text(source.read_text() + "\n# changed\n")
    toy.some_nights_ago()
    assert toy.night().pieces[0].states == {State.STALE: 3}


def test_what_does_not_fit_is_left_out_with_the_reason(toy: Toy) -> None:
    toy.cells = [
        Work("toy", "large/step", State.NEVER, True, (Cost(9999.0),)),
        Work("toy", CELL, State.MEASURED, False, (Cost(20.0),)),
    ]
    night = toy.night(minutes=2.5)
    assert CELL in toy.begun, "a cell that fits is not held up by one that does not"
    (left,) = [piece for piece in night.pieces if piece.ended is Ended.LEFT_OUT]
    assert left.what == "large/step"
    assert left.reason.startswith("needs about 167 min, ")


def test_the_end_of_the_budget_ends_the_night_and_keeps_it(toy: Toy) -> None:
    toy.breaks = {"t10": BudgetSpent()}
    toy.cells = [Work("toy", CELL, State.NEVER, True, (Cost(1.0),))]
    night = toy.night()
    assert pieces(night) == [
        ("µbench", "3 cases", "cut"), ("µbench", "t10", "left out"), ("end to end", CELL, "left out"),
    ]  # fmt: skip
    assert night.calls[0].ended == "finished"
    assert night.calls[0].reason == "the budget is spent"


def test_one_ops_error_does_not_end_the_night(toy: Toy) -> None:
    toy.breaks = {"t8": UserError("shapes/toy.yaml: is gone")}
    toy.cells = [Work("toy", CELL, State.NEVER, True, (Cost(1.0),))]
    toy.failures = ["toy in toy-model/step: it broke"]
    night = toy.night()
    assert toy.begun == ["t8", CELL, "t8", "t8"]
    assert night.failures[0] == "toy: 3 cases: shapes/toy.yaml: is gone"
    assert "toy in toy-model/step: it broke" in night.failures


def test_a_machine_that_cannot_measure_says_so(toy: Toy) -> None:
    toy.breaks = {"t8": UnfitError("another run holds the device")}
    with pytest.raises(UnfitError):
        toy.night()
    assert load(only_file(toy)).calls[0].ended == "unfit"


def test_ops_that_cannot_be_measured_are_named(toy: Toy) -> None:
    toy.unusable = {"toy": "candidates/toy/op.py does not import"}
    toy.problems = ("shapes/other.yaml:2: is not in order",)
    night = toy.night()
    assert night.problems == toy.problems
    assert toy.begun == []
    assert [(piece.op, piece.reason) for piece in night.pieces] == [("toy", "candidates/toy/op.py does not import")]


def test_a_card_that_is_not_named_is_refused(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night_run, "expected_uuid", lambda device_type: None)
    with pytest.raises(UserError, match="set it to a number or to GPU-"):
        toy.night()


def test_a_cell_with_too_little_time_left_goes_on_another_time(toy: Toy) -> None:
    toy.cells = [Work("toy", CELL, State.NEVER, True, (Cost(1.0),))]
    toy.left = ["toy in toy-model/step: needs 3 min more"]
    night = toy.night()
    assert pieces(night)[1] == ("end to end", CELL, "cut")
    assert night.failures == []
    toy.left = []
    assert pieces(toy.night())[-1] == ("end to end", CELL, "done")


def test_cases_of_more_ranks_than_devices_are_named(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "device_count", lambda device_type: 2)
    manifest = toy.root / "shapes/toy.yaml"
    manifest.write_text(manifest.read_text().replace("- id: t9\n", "- id: t9\n    ranks: 4\n"))
    night = toy.night()
    assert "t9" not in toy.begun
    (left,) = [piece for piece in night.pieces if piece.ended is Ended.LEFT_OUT]
    assert (left.what, left.reason) == ("4 ranks", "1 cases of 4 ranks need as many devices of one host")


def test_the_alarm_rings_in_what_takes_too_long_and_not_after() -> None:
    budget = Budget(total_s=0.3, reserve_s=0.15)
    with pytest.raises(BudgetSpent), budget.alarm():
        time.sleep(20)
    assert 0.15 < budget.spent_s < 10
    with Budget(total_s=0.2, reserve_s=0.0).alarm():
        pass
    time.sleep(0.25)
