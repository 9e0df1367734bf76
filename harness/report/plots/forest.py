"""Gains end to end: every arm of every cell with its interval, against the bar, the A/A twin and the ceiling."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report.matrix_notes import gpu_cells
from harness.report.plots.style import INK, WIDTH_IN, hollow, legend, look, new_figure, style
from harness.schema.e2e_verdict import CellVerdict, Verdict
from harness.schema.figures import Span
from harness.schema.verdict import RowVerdict

BAR_PCT = 1.0
_INCHES_PER_LINE = 0.24


@dataclass(frozen=True)
class _Line:
    """One interval of a cell."""

    label: str
    gain_pct: Span
    colour: str
    marker: str
    valid: bool
    said: str
    """Beside the interval."""


def draw_forest(row: RowVerdict) -> Figure:
    """The cells that count, each with its twin, its candidates, native behind a custom op, and its ceiling."""
    cells = [cell for cell in gpu_cells(row) if cell.twin or cell.candidates]
    names = list(dict.fromkeys(arm.id for cell in cells for arm in cell.candidates))
    blocks = [(cell, _lines(cell, names)) for cell in cells]
    with look():
        count = sum(len(lines) + 1 for _, lines in blocks)
        figure = new_figure(WIDTH_IN, 1.5 + _INCHES_PER_LINE * count)
        _panel(figure.subplots(), blocks)
        figure.suptitle(f"{row.title}, end to end", color=INK, fontsize=10)
        legend(figure, columns=3)
    return figure


def _lines(cell: CellVerdict, names: list[str]) -> list[_Line]:
    found = []
    if cell.twin is not None and cell.twin.to_static is not None:
        found.append(_Line("A/A twin", cell.twin.to_static.gain_pct, INK, "|", True, "must not be told from 0"))
    for arm in cell.candidates:
        if arm.gain_pct is not None:
            colour, marker = style(names.index(arm.id))
            valid = arm.verdict is not Verdict.INVALID
            found.append(_Line(arm.id, arm.gain_pct, colour, marker, valid, str(arm.verdict)))
    if cell.opaque_pct is not None:
        found.append(_Line("native behind a custom op", cell.opaque_pct, INK, "x", True, "the price of a barrier"))
    if cell.ceiling_pct is not None:
        found.append(_Line("do nothing (ceiling)", cell.ceiling_pct, INK, "*", True, "all there is to gain"))
    return found


def _panel(ax: Axes, blocks: list[tuple[CellVerdict, list[_Line]]]) -> None:
    ax.axvline(0, color=INK, linewidth=0.8, zorder=1)
    ax.axvline(BAR_PCT, color=INK, linewidth=1.4, linestyle="--", zorder=1, label="bar: 1 %")
    ticks: list[tuple[float, str, bool]] = []
    y = 0.0
    for cell, lines in blocks:
        ticks.append((y, f"{cell.wired_in}, {cell.what}: {cell.verdict}", True))
        y += 1
        for line in lines:
            span = line.gain_pct
            ax.errorbar(
                span.estimate,
                y,
                xerr=[[max(0.0, span.estimate - span.lower)], [max(0.0, span.upper - span.estimate)]],
                fmt=line.marker,
                markersize=6,
                color=line.colour,
                markerfacecolor=hollow(line.colour, line.valid),
                elinewidth=1.2,
                capsize=3,
                zorder=3,
            )
            ax.annotate(
                line.said,
                (span.upper, y),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=line.colour,
            )
            ticks.append((y, line.label, False))
            y += 1
    ax.set_yticks([place for place, _, _ in ticks], [label for _, label, _ in ticks])
    for label, (_, _, heading) in zip(ax.get_yticklabels(), ticks, strict=True):
        label.set_fontweight("bold" if heading else "normal")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(y - 0.5, -0.7)
    ax.margins(x=0.12)
    ax.grid(axis="x", zorder=0)
    ax.set_xlabel("gain, percent of the baseline's time, with the rule's interval; hollow: INVALID")
