"""The night's file while a call of the command writes it: begun or gone on with, noted in after every piece, closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness.nightly.plan import State, Work
from harness.nightly.record import Call, Ended, Night, Piece, Stage, Told, file_of, load, now, save
from harness.store import Line, ProcessStore

Ending = Literal["finished", "interrupted", "unfit"]


class Diary:
    """One card's night of today; `night` is what the file holds, but for what was learnt since the last note."""

    def __init__(self, root: Path, uuid: str, device_type: Literal["cuda", "cpu"], budget_min: float) -> None:
        self.root, self.uuid = root, uuid
        self.file = file_of(root, uuid, datetime.now(UTC).date().isoformat())
        call = Call(started_at=now(), budget_min=budget_min)
        if self.file.exists():
            before = load(self.file)
            kept = tuple(piece for piece in before.pieces if piece.ended is not Ended.LEFT_OUT)
            self.night = before.model_copy(update={"calls": (*before.calls, call), "pieces": kept})
        else:
            self.night = Night(date=call.started_at[:10], device_type=device_type, calls=(call,))

    @property
    def goes_on(self) -> bool:
        """Whether an earlier call of today began it."""
        return len(self.night.calls) > 1

    def save(self) -> None:
        """Write the file."""
        save(self.night, self.file)

    def note(self, piece: Piece) -> None:
        """A piece has ended."""
        self.night = self.night.model_copy(update={"pieces": (*self.night.pieces, piece)})
        self.save()

    def leave_out(
        self, stage: Stage, op: str, what: str, reason: str, states: Mapping[State, int] | None = None
    ) -> None:
        """A piece was not begun."""
        piece = Piece(stage=stage, op=op, what=what, states=dict(states or {}), ended=Ended.LEFT_OUT, reason=reason)
        self.note(piece)

    def leave_out_rest(
        self, stage: Stage, works: Sequence[Work], why_not: Mapping[tuple[Stage, str, str], str]
    ) -> None:
        """What the night has not measured, by op and reason; `why_not` by stage, op and work."""
        rest: dict[tuple[str, str], list[Work]] = {}
        for work in works:
            why = why_not.get((stage, work.op, work.id), "the night ended before its turn")
            rest.setdefault((work.op, why), []).append(work)
        for (op, why), of_op in rest.items():
            names = ", ".join(work.id for work in of_op[:3]) + (f" and {len(of_op) - 3} more" if len(of_op) > 3 else "")
            self.leave_out(stage, op, names, why, states_of(of_op))

    def problem(self, *sentences: str) -> None:
        """Something that is not as it should be, told once."""
        problems = dict.fromkeys((*self.night.problems, *sentences))
        self.night = self.night.model_copy(update={"problems": tuple(problems)})

    def name_device(self, lines: Sequence[Line]) -> str:
        """As the newest evidence of this card names it; its key, empty where there is none."""
        newest = max(
            (line for line in lines if line.summary.device_uuid == self.uuid),
            key=lambda line: line.summary.started_at,
            default=None,
        )
        cells = (one.record.environment.device for one in ProcessStore(self.root / "results").load())
        device = (
            newest.measurement.environment.device
            if newest is not None
            else next((one for one in cells if one.uuid == self.uuid), None)
        )
        if device is not None:
            self.night = self.night.model_copy(update={"device": device.name, "device_key": device.key})
        return self.night.device_key

    def close(self, ended: Ending, reason: str, took_s: float, changes: tuple[Told, ...] | None) -> None:
        """This call is over."""
        *earlier, last = self.night.calls
        last = last.model_copy(update={"took_s": took_s, "ended": ended, "reason": reason})
        self.night = self.night.model_copy(update={"calls": (*earlier, last), "changes": changes})
        self.save()


def states_of(works: Sequence[Work]) -> dict[State, int]:
    """How many are in which state."""
    return {state: count for state in State if (count := sum(work.state is state for work in works))}
