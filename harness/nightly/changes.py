"""The history's say on a night: what changed, and whether the rule confirms it."""

from __future__ import annotations

from pathlib import Path

from harness.nightly.record import Change, Night


def changes_found(root: Path, night: Night) -> tuple[tuple[Change, ...] | None, list[str]]:
    """Changes on the night's device, and why there are none to tell, a sentence each.

    None where the history was not looked at.
    """
    return None, []
