"""The history's say on a night: what changed on its kind of device, and whether that is news."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.errors import UserError
from harness.history import history
from harness.history.rerun import confirm
from harness.nightly.record import FOLDER, Night, Told, load
from harness.schema.history import Change, Standing

OPEN = (Standing.SUSPECTED, Standing.REGRESSION)
"""What a night tells; the others are settled and no loss."""


def changes_of(root: Path, device_key: str) -> tuple[list[Change] | None, list[str]]:
    """Changes that are suspected or regressions, and why there are none to tell, a sentence each.

    None where the history cannot be read.
    """
    try:
        _, changes = history(root)
    except UserError as error:
        return None, [str(error)]
    return [one for one in changes if one.key.device_key == device_key and one.standing in OPEN], []


def told(root: Path, night: Night, changes: list[Change]) -> tuple[Told, ...]:
    """The changes as the night's file keeps them; new is what no earlier night has told."""
    before = {
        (one.what, one.since, one.standing)
        for file in (root / "results" / FOLDER).glob("*.json")
        for earlier in (load(file),)
        if earlier.device_key == night.device_key and earlier.date < night.date
        for one in earlier.changes or ()
    }
    return tuple(
        Told(
            op=one.key.op,
            what=one.key.name,
            since=one.after.started_at,
            standing=one.standing,
            sentence=f"{one.sentence}; {one.why}",
            new=(one.key.name, one.after.started_at, one.standing) not in before,
        )
        for one in changes
    )


def confirmed(change: Change, root: Path, say: Callable[[str], None]) -> Change:
    """Fresh pairs of the old and the new build until the rule decides; raises as `harness.history.rerun.confirm`."""
    return confirm(change, root, None, None, say)
