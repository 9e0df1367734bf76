"""Fresh runs of the old and the new build of a change, in turn, each from a checkout of its own commit.

The commits are those that the runs before and after the change were made at; a run made of a tree with uncommitted
changes cannot be made again. Where packages changed as well, the old ones must be installed for another interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UnfitError, UserError
from harness.history.confirm import ConfirmStore, confirmed
from harness.history.series import process_samples, samples_of
from harness.paths import WORK_FOLDER
from harness.schema.history import Change, Metric, Run, Standing
from harness.schema.measurement import Measurement
from harness.schema.process import ProcessRecord
from harness.stats.rule import P_CAP
from harness.store import ProcessStore, Store

OPEN = (Standing.SUSPECTED, Standing.INCONCLUSIVE)


@dataclass(frozen=True)
class Side:
    """One of the two builds: where it lies and what runs it."""

    name: str
    run: Run
    folder: Path
    python: str


def confirm(
    change: Change,
    root: Path,
    old_python: str | None,
    new_python: str | None,
    say: Callable[[str], None],
) -> Change:
    """Make pairs of fresh runs until the rule decides or has had its eight; return the change with its new standing.

    Every run is appended to the store as it ends, so that an interrupted confirmation goes on where it was. Raises
    UserError where the two builds cannot be made again, UnfitError where a run leaves nothing.
    """
    fresh = ConfirmStore(root / "results")
    change = confirmed(change, fresh)
    if change.before.build == change.after.build:
        raise UserError(f"{change.key.name}: {change.why}.")
    sides = [
        Side("old", change.before, _checkout(root, change.before), old_python or sys.executable),
        Side("new", change.after, _checkout(root, change.after), new_python or sys.executable),
    ]
    made = change.confirmation.pairs if change.confirmation else 0
    while change.standing is Standing.SUSPECTED and made < P_CAP:
        for side in sides if made % 2 == 0 else reversed(sides):
            say(f"pair {made + 1} of at most {P_CAP}: {side.name} build, commit {(side.run.git_sha or '')[:12]}")
            for record in _run(side, change):
                fresh.append(record)
        change = confirmed(change, fresh)
        if change.confirmation is None or change.confirmation.pairs <= made:
            raise UnfitError(f"{change.key.name}: the runs gave no pair on one card; see what they printed above.")
        made = change.confirmation.pairs
        say(f"{change.standing}: {change.why}")
    return change


def _checkout(root: Path, run: Run) -> Path:
    """A checkout of the run's commit below the work folder."""
    commit = run.git_sha
    if commit is None or commit.endswith("+dirty"):
        state = "outside a checkout" if commit is None else "of a tree with uncommitted changes"
        raise UserError(
            f"results/{run.evidence.file}:{run.evidence.line} was made {state}; that build cannot be run again."
        )
    folder = root / WORK_FOLDER / "confirm" / commit[:12]
    if not folder.exists():
        done = subprocess.run(
            ["git", "worktree", "add", "--force", "--detach", str(folder), commit],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UserError(f"commit {commit[:12]} cannot be checked out: {done.stderr.strip().splitlines()[-1]}.")
    return folder


def _run(side: Side, change: Change) -> Iterator[Measurement | ProcessRecord]:
    """One fresh run in the side's checkout; what it left of the change's series, if it is of the side's build."""
    key = change.key
    before = set(_checksums(side.folder, change))
    arguments = ["bench", key.op, "--case", key.where, *(["--context", key.context] if key.context else [])]
    if key.metric is Metric.GAIN:
        arguments = ["e2e", key.op, "--model", key.where, "--arm", key.arm]
    command = [side.python, "-m", "harness", *arguments, "--fresh", "--device", key.device_type]
    # The code of the checkout, and nothing that was installed from another.
    subprocess.run(command, cwd=side.folder, env={**os.environ, "PYTHONPATH": str(side.folder)}, check=False)
    found = [record for sha256, record in _checksums(side.folder, change).items() if sha256 not in before]
    for record in found:
        samples = process_samples(record) if isinstance(record, ProcessRecord) else samples_of(record)
        mine = [sample for sample in samples if sample.key == key]
        if mine and dict(mine[0].build) != side.run.build:
            other = [
                f"{name} {side.run.build.get(name, 'none')}, now {mine[0].build.get(name, 'none')}"
                for name in {**side.run.build, **mine[0].build}
                if side.run.build.get(name) != mine[0].build.get(name)
            ]
            raise UserError(
                f"{key.name}: the {side.name} build cannot be made again with {side.python}: {'; '.join(other)}; "
                f"give an interpreter that has it (--{side.name}-python)."
            )
        if mine:
            yield record


def _checksums(folder: Path, change: Change) -> dict[str, Measurement | ProcessRecord]:
    """The lines of the checkout's own store, by checksum."""
    if change.key.metric is Metric.GAIN:
        return {one.sha256: one.record for one in ProcessStore(folder / "results").load(change.key.op)}
    return {one.sha256: one.measurement for one in Store(folder / "results").load(change.key.op)}
