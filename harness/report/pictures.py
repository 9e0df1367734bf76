"""Which pictures an op has, and how a page shows them; without matplotlib, which only drawing needs."""

from __future__ import annotations

from enum import StrEnum

from harness.schema.verdict import RowVerdict
from harness.schema.vocabulary import Role

HISTORY_RUNS = 3
"""Fewer runs of a case are no history worth a picture."""


class Picture(StrEnum):
    """What a picture shows; the value is the end of its file's name."""

    SPEEDUP = ""
    ROOFLINE = "roofline"
    RUN = "run"
    E2E = "e2e"
    HISTORY = "history"


_ALT = {
    Picture.SPEEDUP: "Ratio to torch.compile, by case and candidate",
    Picture.ROOFLINE: "Time against bytes moved, beside a copy of as many bytes in the same run",
    Picture.RUN: "The run's own noise, clocks, power and temperature, measurement by measurement",
    Picture.E2E: "Gain end to end of every arm, with its interval, against the bar of 1 %",
    Picture.HISTORY: "Ratio to torch.compile over the runs, by case and candidate",
}


def file_of(op: str, picture: Picture) -> str:
    """Name without its suffix."""
    return "-".join(filter(None, [op, picture]))


def pictures_of(row: RowVerdict) -> list[Picture]:
    """The pictures that the row's verdicts give."""
    comparisons = [one for card in row.cards for one in card.comparisons]
    found = []
    if row.cards:
        found.append(Picture.SPEEDUP)
    if any(one.copy_us is not None and one.context is None for one in comparisons):
        found.append(Picture.ROOFLINE)
    if any(arm.effect_log_pct for one in comparisons for arm in one.controls if arm.role is not Role.BASELINE):
        found.append(Picture.RUN)
    if any(cell.device.type == "cuda" and (cell.twin or cell.candidates) for cell in row.cells):
        found.append(Picture.E2E)
    if any(one.passed_over + 1 >= HISTORY_RUNS for one in comparisons):
        found.append(Picture.HISTORY)
    return found


def shown(row: RowVerdict, picture: Picture) -> str:
    """The picture in Markdown, or nothing where the row has none."""
    return f"![{_ALT[picture]}]({file_of(row.op, picture)}.svg)" if picture in pictures_of(row) else ""
