"""What became of a night: `results/nightly/<date>-<card>.json`, written after every piece, and how it reads.

The card is the first eight digits of its identifier's SHA-256: several hosts may keep one folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from harness.errors import UserError
from harness.nightly.plan import State, minutes
from harness.report.text import code, plain, table
from harness.schema.history import Standing
from harness.schema.measurement import Finite, Record

FOLDER = "nightly"
"""Below `results/`."""


class Stage(StrEnum):
    """What a piece was of."""

    MICROBENCH = "µbench"
    E2E = "end to end"
    HISTORY = "history"
    """A suspected change, run again in its old and its new build."""


class Ended(StrEnum):
    """How a piece ended."""

    DONE = "done"
    FAILED = "failed"
    """Something of it broke; the rest is stored."""
    CUT = "cut"
    """The budget or Ctrl-C ended it; what was measured is stored, and the same command goes on from there."""
    LEFT_OUT = "left out"


class Piece(Record):
    """One op's comparisons or one end-to-end cell: what was begun, or why it was not."""

    stage: Stage
    op: str
    what: str
    """Cases begun, or the cell."""
    states: dict[State, int]
    """How many of its cases were in which state before; of a cell, its own."""
    ended: Ended
    reason: str = ""
    """Why it was left out, cut or begun in part."""
    failures: tuple[str, ...] = ()
    """What broke, a sentence each."""
    measured: int = 0
    """Comparisons, or processes, that were stored."""
    estimate_s: Finite = 0.0
    took_s: Finite = 0.0


class Call(Record):
    """One call of the command: a night that was interrupted has several."""

    started_at: str
    """UTC, ISO 8601."""
    budget_min: Finite
    took_s: Finite = 0.0
    ended: Literal["running", "finished", "interrupted", "unfit"] = "running"
    reason: str = ""


class Told(Record):
    """A change in the history, as it stood at the end of the night."""

    op: str
    what: str
    since: str
    """When the first run after the change began."""
    standing: Standing
    """Suspected, and no regression, until the decision rule has confirmed it."""
    sentence: str
    new: bool
    """No earlier night on this kind of device has told it."""


class Night(Record):
    """A date on one card."""

    schema_version: Literal[1] = 1
    date: str
    device_type: Literal["cuda", "cpu"]
    device: str = ""
    """Its name, once a worker has said it."""
    device_key: str = ""
    """Its folder under `results/`."""
    calls: tuple[Call, ...] = ()
    pieces: tuple[Piece, ...] = ()
    changes: tuple[Told, ...] | None = None
    """None where the history was not looked at."""
    problems: tuple[str, ...] = ()
    """Why reports or history are not what they should be, a sentence each."""

    @property
    def since(self) -> datetime:
        """When the night began: what was measured from then on is done for tonight."""
        return datetime.fromisoformat(self.calls[0].started_at)

    @property
    def failures(self) -> list[str]:
        """What broke, a sentence each."""
        return [sentence for piece in self.pieces for sentence in piece.failures]


def file_of(root: Path, uuid: str, date: str) -> Path:
    """Where the night of a card lies."""
    return root / "results" / FOLDER / f"{date}-{hashlib.sha256(uuid.encode()).hexdigest()[:8]}.json"


def load(file: Path) -> Night:
    """Read a night; raises UserError for a damaged one."""
    try:
        return Night.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"{file}: is no night of this harness ({'.'.join(map(str, first['loc']))}: {first['msg']}); move it away."
        ) from error


def save(night: Night, file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    half = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        half.write_text(night.model_dump_json(indent=1) + "\n", encoding="utf-8")
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)


def newest(root: Path) -> Path:
    """The night whose last call began last; raises UserError where there is none."""
    files = sorted((root / "results" / FOLDER).glob("*.json"))
    if not files:
        raise UserError("results/nightly/ holds no night; run `make nightly` first.")
    return max(files, key=lambda file: load(file).calls[-1].started_at)


def now() -> str:
    """UTC to the second, as measurements note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def markdown(night: Night) -> str:
    """The night for people: what ran, what did not and why."""
    spent_s = sum(call.took_s for call in night.calls)
    asked_min = sum(call.budget_min for call in night.calls)
    device = night.device or night.device_type
    rehearsal = " A rehearsal on a CPU: it decides nothing." if night.device_type == "cpu" else ""
    parts = [
        f"# Night of {night.date}",
        f"{plain(device)}, {minutes(spent_s)} of {asked_min:g} min asked for, {_calls(night)}.{rehearsal}",
    ]
    begun = [piece for piece in night.pieces if piece.ended is not Ended.LEFT_OUT]
    if begun:
        rows = [
            (
                piece.stage,
                code(piece.op),
                plain(piece.what),
                plain(", ".join(f"{count} {state}" for state, count in piece.states.items())),
                str(piece.measured),
                minutes(piece.estimate_s),
                minutes(piece.took_s),
                plain(f"{piece.ended}{f': {piece.reason}' if piece.reason else ''}"),
            )
            for piece in begun
        ]
        headers = ("stage", "op", "what", "before", "stored", "estimate", "took", "ended")
        parts += ["## What ran", table(headers, rows, right=(4, 5, 6))]
    if night.failures:
        parts += ["## What broke", _bullets(night.failures)]
    left_out = [piece for piece in night.pieces if piece.ended is Ended.LEFT_OUT]
    if left_out:
        parts += [
            "## What did not, and why",
            "\n".join(
                f"* {piece.stage}, {code(piece.op)}, {plain(piece.what)}: {plain(piece.reason)}" for piece in left_out
            ),
        ]
    parts += ["## History", _history(night)]
    if night.problems:
        parts += ["## Problems", _bullets(night.problems)]
    return "\n\n".join(parts) + "\n"


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"* {plain(sentence)}" for sentence in sentences)


def _calls(night: Night) -> str:
    last = night.calls[-1]
    calls = "one call" if len(night.calls) == 1 else f"{len(night.calls)} calls"
    return f"{calls}, the last {last.ended}{f' ({plain(last.reason)})' if last.reason else ''}"


def _history(night: Night) -> str:
    if night.changes is None:
        return "Not looked at."
    if not night.changes:
        return "No change is suspected, and no regression stands."
    return "\n".join(
        f"* {'new, ' if one.new else ''}{'**regression**' if one.standing is Standing.REGRESSION else one.standing}: "
        f"{plain(one.sentence)}"
        for one in night.changes
    )
