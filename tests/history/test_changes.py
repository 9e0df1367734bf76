"""A step is found where it is and one wild night is none; what is found is suspected, never called a regression."""

import builtins
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.history import history
from harness.history.changes import MIN_RUNS, change_points
from harness.schema.history import Change, Metric, Standing
from tests.history.nights import NEW, OLD, nights


def noisy(count: int, seed: int) -> Any:
    """Nights as they are: 0.15 % apart, one in 25 bad."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.15, count)
    bad = rng.random(count) < 0.04
    values[bad] += rng.choice([-1, 1], bad.sum()) * rng.exponential(1.5, bad.sum())
    return values


@pytest.mark.defence("history_trigger")
@pytest.mark.parametrize("step", [-1.0, 1.0])
def test_a_step_of_one_percent_is_found_within_three_nights(step: float) -> None:
    found = []
    for seed in range(20):
        values = noisy(64, seed)
        values[60:] += step
        found.append([point for point in change_points(values) if abs(point - 60) <= 2])
    assert sum(map(bool, found)) >= 18


def test_nights_without_a_step_seldom_look_like_one() -> None:
    fired = [bool(change_points(noisy(56, seed))) for seed in range(60)]
    assert sum(fired) <= 0.15 * len(fired)


@pytest.mark.defence("history_clip")
def test_one_wild_night_is_no_level() -> None:
    values = noisy(30, 1)
    values[15] += 40
    assert change_points(values) == []


@pytest.mark.parametrize("step", [2.0, 40.0])
def test_a_step_in_the_middle_does_not_hide_itself(step: float) -> None:
    values = noisy(60, 3)
    values[30:] -= step
    assert change_points(values) == [30]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=40),
    shift=st.floats(-1e3, 1e3),
)
def test_points_are_inside_far_enough_apart_and_move_with_nothing(values: list[float], shift: float) -> None:
    points = change_points(np.array(values))
    bounds = [0, *points, len(values)]
    assert all(after - before >= 3 for before, after in pairwise(bounds)) or not points
    assert len(values) >= MIN_RUNS or points == []
    mirrored = change_points(-np.array(values))
    assert mirrored == points


def ratio_changes(root: Path) -> list[Change]:
    _, changes = history(root)
    return [change for change in changes if change.key.metric is Metric.RATIO]


@pytest.mark.defence("history_unconfirmed")
def test_a_slowdown_is_suspected_with_what_changed_and_no_more(tmp_path: Path) -> None:
    nights(tmp_path, 24, 16, 0.97)
    series, _ = history(tmp_path)
    assert {(one.key.metric, one.key.arm, len(one.runs)) for one in series} == {
        (Metric.TIME, "torch.compile", 24),
        (Metric.RATIO, "inhouse.k", 24),
    }
    (change,) = ratio_changes(tmp_path)
    assert change.standing is Standing.SUSPECTED
    assert change.shift_log_pct == pytest.approx(100 * np.log(0.97), abs=0.15)
    assert (change.runs_before, change.runs_after) == (16, 8)
    assert (change.before.evidence.line, change.after.evidence.line) == (16, 17)
    assert change.differs == (
        "torch 2.11.0+cu130 → 2.12.0+cu130",
        f"sources of the op {'a' * 12} → {'b' * 12}",
    )
    assert change.why == "no fresh runs of the two builds yet: `harness confirm groupnorm_silu --where mid` makes them"
    assert change.sentence.endswith("suspected, 3.09 % more time since 2026-01-17T02:00:00+00:00") or (
        "suspected, 3." in change.sentence and "more time" in change.sentence
    )
    assert "REGRESSION" not in change.sentence + change.why


def test_the_build_that_changed_a_night_before_or_after_is_meant(tmp_path: Path) -> None:
    """The first night of the new build was a bad one for it to be seen in."""
    nights(tmp_path, 24, 16, 0.97, build=lambda number: NEW if number >= 15 else OLD)
    (change,) = ratio_changes(tmp_path)
    assert (change.before.git_sha, change.after.git_sha) == ("a" * 40, "b" * 40)
    assert change.after.evidence.line == 16


def test_a_change_of_nothing_recorded_stays_suspected(tmp_path: Path) -> None:
    other_card = OLD.model_copy(update={"device": OLD.device.model_copy(update={"uuid": "GPU-2"})})
    nights(tmp_path, 24, 16, 0.97, build=lambda number: other_card if number >= 16 else OLD)
    (change,) = ratio_changes(tmp_path)
    assert change.differs == (f"card {OLD.device.uuid} → GPU-2",)
    assert change.why == (
        "nothing recorded of what ran has changed, but the card is another one: there are no two builds to compare"
    )


def test_values_are_computed_once_and_are_the_same_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nights(tmp_path, 10, 99, 1.0)
    first = history(tmp_path)
    read: list[tuple[int, int]] = []
    again = history(tmp_path, on_read=lambda done, total: read.append((done, total)))
    assert again == first
    assert read == []


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ruptures":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"ruptures, which finds change points, is not installed: pip install"):
        change_points(np.zeros(MIN_RUNS))


def test_the_verb_prints_changes_and_needs_no_torch(tmp_path: Path) -> None:
    nights(tmp_path, 24, 16, 0.97)
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "groupnorm_silu.yaml").touch()
    (tmp_path / "torch.py").write_text("raise ImportError('a machine without torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", "harness", "history", "groupnorm_silu"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *_ = done.stdout.splitlines()
    assert first == "2 series, 2 of at least 8 runs, 1 change points"
    assert second == "suspected groupnorm_silu mid: ratio to torch.compile of inhouse.k"
    assert "changed: torch 2.11.0+cu130 → 2.12.0+cu130; sources of the op" in done.stdout
