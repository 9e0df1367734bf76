"""The pictures of `reports/`, each as SVG for the pages and PNG for whatever shows no SVG. `verify` compares none.

`draw_row` makes those of one op: `<op>` (speed-up by case), `<op>-roofline`, `<op>-run` (noise and telemetry),
`<op>-e2e` (forest) and `<op>-history`, each where there is something to show; `pictures_of` says which these are from
the verdicts alone, as pages must.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.report.pictures import Picture, file_of, pictures_of
from harness.report.plots.forest import draw_forest
from harness.report.plots.history import draw_history
from harness.report.plots.roofline import draw_roofline
from harness.report.plots.run import draw_run
from harness.report.plots.speedup import draw_speedup
from harness.report.plots.style import save
from harness.schema.history import Change, Series
from harness.schema.verdict import RowVerdict

__all__ = ["draw_row"]


def draw_row(row: RowVerdict, folder: Path, series: Sequence[Series], changes: Sequence[Change]) -> list[Path]:
    """Draw what the row has to show; the files. `series` and `changes` are the op's, for its history."""
    figures = {
        Picture.SPEEDUP: lambda: draw_speedup(row),
        Picture.ROOFLINE: lambda: draw_roofline(row),
        Picture.RUN: lambda: draw_run(row),
        Picture.E2E: lambda: draw_forest(row),
        Picture.HISTORY: lambda: draw_history(row, series, changes),
    }
    return [
        path for picture in pictures_of(row) for path in save(figures[picture](), folder / file_of(row.op, picture))
    ]
