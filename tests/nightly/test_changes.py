"""What a night tells of the history, and how it follows up what is suspected."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.errors import UnfitError, UserError
from harness.nightly import changes as changes_module
from harness.nightly import run as night_run
from harness.nightly.changes import changes_of, told
from harness.nightly.record import Call, Ended, Night, Stage, file_of, save
from harness.nightly.run import NightRun, Request
from harness.schema.figures import Evidence, Span
from harness.schema.history import Change, Confirmation, Metric, Run, SeriesKey, Standing
from harness.schema.manifest import load_manifests
from tests.builders import LAPTOP
from tests.test_cli import project

KEY = SeriesKey(
    device_key=LAPTOP.key, device_type="cpu", op="toy", where="t8", context=None, mode="wall",
    arm="inhouse.flipped", metric=Metric.RATIO,
)  # fmt: skip


def run_at(date: str) -> Run:
    evidence = Evidence(file="cpu/toy.jsonl", line=1, sha256="a" * 64)
    return Run(
        started_at=f"{date}T02:00:00+00:00", value_log_pct=0.0, se_log_pct=0.1, card="cpu", git_sha="b" * 40,
        build={"torch": date}, evidence=evidence,
    )  # fmt: skip


def change(standing: Standing = Standing.SUSPECTED, *, device_key: str = LAPTOP.key, pairs: int = 0) -> Change:
    shift = Span(estimate=-2.0, lower=-3.0, upper=-1.0)
    return Change(
        key=KEY.model_copy(update={"device_key": device_key}),
        before=run_at("2026-11-20"), after=run_at("2026-11-21"), runs_before=9, runs_after=4, shift_log_pct=-2.0,
        differs=("torch 2.11 -> 2.12",), standing=standing, why="nothing has been run again",
        confirmation=Confirmation(shift_pct=shift, pairs=pairs, p_max=8) if pairs else None,
    )  # fmt: skip


def night(date: str, **more: Any) -> Night:
    call = Call(started_at=f"{date}T02:00:00+00:00", budget_min=60)
    return Night(date=date, device_type="cpu", device_key=LAPTOP.key, calls=(call,), **more)


def found(monkeypatch: pytest.MonkeyPatch, *changes: Change) -> None:
    monkeypatch.setattr(changes_module, "history", lambda root: ([], list(changes)))


def test_a_night_tells_what_is_open_on_its_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    suspected, confirmed = change(), change(Standing.REGRESSION)
    found(monkeypatch, suspected, confirmed, change(Standing.UNDER_THE_BAR), change(device_key="another"))
    assert changes_of(Path(), LAPTOP.key) == ([suspected, confirmed], [])


def test_a_history_that_cannot_be_read_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(root: Path) -> None:
        raise UserError("results/x.jsonl:3: is damaged")

    monkeypatch.setattr(changes_module, "history", broken)
    assert changes_of(Path(), LAPTOP.key) == (None, ["results/x.jsonl:3: is damaged"])


def test_what_an_earlier_night_told_is_no_news_until_it_stands_otherwise(tmp_path: Path) -> None:
    first = night("2026-11-28")
    save(first.model_copy(update={"changes": told(tmp_path, first, [change()])}), file_of(tmp_path, "cpu", first.date))
    second = night("2026-11-29")
    assert [one.new for one in told(tmp_path, first, [change()])] == [True], "a night is not its own past"
    assert [one.new for one in told(tmp_path, second, [change()])] == [False]
    assert [one.new for one in told(tmp_path, second, [change(Standing.REGRESSION)])] == [True]
    elsewhere = second.model_copy(update={"device_key": "another"})
    assert [one.new for one in told(tmp_path, elsewhere, [change()])] == [True]


@pytest.mark.parametrize(
    ("becomes", "ended", "failures"),
    [
        (change(Standing.REGRESSION, pairs=3), Ended.DONE, 0),
        (UserError("commit bbb cannot be checked out"), Ended.DONE, 0),
        (UnfitError("the runs gave no pair"), Ended.FAILED, 1),
    ],
)
def test_a_suspected_change_is_run_again_where_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes: Change | Exception, ended: Ended, failures: int
) -> None:
    asked: list[Change] = []

    def confirm(one: Change, *_: Any) -> Change:
        asked.append(one)
        if isinstance(becomes, Exception):
            raise becomes
        return becomes

    monkeypatch.setattr(night_run, "expected_uuid", lambda device_type: LAPTOP.uuid)
    monkeypatch.setattr(night_run, "changes_of", lambda root, key: ([change(), change(Standing.REGRESSION)], []))
    monkeypatch.setattr(night_run, "confirmed", confirm)
    root = project(tmp_path)
    unusable = {"toy": "left alone here"}

    def measured(minutes: float) -> Night:
        request = Request(minutes, "cpu", load_manifests(root / "shapes"), cell_budget_s=60.0, unusable=unusable)
        night_of = NightRun(request, root, Console(quiet=True), Console(quiet=True))
        night_of._measure()
        return night_of.night

    assert measured(5.0).pieces == (), "eight pairs would not fit"
    if isinstance(becomes, UnfitError):
        with pytest.raises(UnfitError):
            measured(60.0)
        return
    (piece,) = measured(60.0).pieces
    assert (piece.stage, piece.ended, len(piece.failures)) == (Stage.HISTORY, ended, failures)
    assert piece.measured == (6 if isinstance(becomes, Change) else 0)
    assert [one.standing for one in asked] == [Standing.SUSPECTED], "what is settled is not asked again"
