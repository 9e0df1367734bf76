"""Runs of many nights: where they change, and whether fresh runs confirm it.

`series` makes runs of lines of the store, `changes` finds change points (a trigger, nothing more), `confirm` asks the
decision rule about fresh runs of the old and the new build, `rerun` makes such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.schema.history import Change, Series


def history(
    root: Path,
    ops: Iterable[str] | None = None,
    on_read: Callable[[int, int], None] = lambda done, total: None,
    find: bool = True,
) -> tuple[list[Series], list[Change]]:
    """All series of these ops (or of all) below the root's `results/`, and every change in them with its standing.

    Without `find` no change is looked for. `on_read` is told how many of the lines that have to be read were read.
    Raises UserError for a damaged store, or where the package that finds change points is missing.
    """
    # The command line imports this package for its verbs; what computes waits until it is asked.
    from harness.history.changes import changes_of
    from harness.history.confirm import ConfirmStore, confirmed
    from harness.history.series import series_of

    series = series_of(root, None if ops is None else frozenset(ops), on_read)
    fresh = ConfirmStore(root / "results")
    changes = [confirmed(change, fresh) for one in series for change in changes_of(one)] if find else []
    return series, changes
