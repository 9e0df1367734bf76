"""The ratio to torch.compile, by case and candidate, with intervals."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.report import text
from harness.report.matrix import device_name
from harness.report.plots.style import INK, WIDTH_IN, band, hollow, legend, look, new_figure, style
from harness.schema.verdict import ArmVerdict, Comparison, RowVerdict

_INCHES_PER_ARM = 0.16
_INCHES_PER_CASE = 0.95
_TICKS = (
    0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8, 12, 16, 24, 32, 64,
)  # fmt: skip
_MOST_TICKS = 10


def draw_speedup(row: RowVerdict) -> Figure:
    """Cases of the card that decides the row, from top to bottom."""
    cases = [one for one in row.cards[0].comparisons if one.context is None]
    names = candidate_names(row)
    with look():
        per_case = min(0.22 + _INCHES_PER_ARM * max(1, len(names)), _INCHES_PER_CASE)
        figure = new_figure(WIDTH_IN, 1.6 + 0.16 * (len(names) // 2) + per_case * len(cases))
        ax = figure.subplots()
        _panel(ax, cases, names)
        ax.set_title(title(row))
        legend(figure)
    return figure


def candidate_names(row: RowVerdict) -> list[str]:
    """Candidates that were timed, in the order of their first case: each has its colour and marker in every picture."""
    alone = [one for one in row.cards[0].comparisons if one.context is None]
    return list(dict.fromkeys(arm.id for one in alone for arm in one.candidates if arm.ratio is not None))


def title(row: RowVerdict) -> str:
    """Op, the card that decides its row, and torch."""
    card = row.cards[0]
    return f"{row.title} on {device_name(card, row)}, torch {text.listed(card.packages.get('torch', ('?',)))}"


def _panel(ax: Axes, cases: list[Comparison], names: list[str]) -> None:
    pitch = 0.8 / max(1, len(names))
    band(ax, 0.99, 1 / 0.99, "±1 % (TIE)")
    ax.axvline(1.0, color=INK, linewidth=0.8, zorder=1)
    _limits(ax, cases)
    for index, name in enumerate(names):
        arms = [(row, arm) for row, one in enumerate(cases) for arm in one.candidates if arm.id == name]
        _points(ax, [(row - 0.4 + pitch * (index + 0.5), arm) for row, arm in arms], index, name)
    ax.set_yticks(range(len(cases)), [f"{one.case.id}\n{text.short_shape(one.case)}" for one in cases], fontsize=7)
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.set_xscale("log", base=2)
    _ticks(ax)
    ax.set_xlabel("t(torch.compile) / t(candidate), 95 % interval; right of the line is faster")
    ax.grid(axis="x", zorder=0)
    for between in range(1, len(cases)):
        ax.axhline(between - 0.5, color=INK, alpha=0.25, linewidth=0.8, zorder=0)


def _points(ax: Axes, arms: list[tuple[float, ArmVerdict]], index: int, name: str) -> None:
    """One candidate; hollow where the outcome is invalid."""
    colour, marker = style(index)
    label: str | None = name
    for y, arm in arms:
        if arm.ratio is None:
            continue
        ax.errorbar(
            arm.ratio.estimate,
            y,
            xerr=[[arm.ratio.estimate - arm.ratio.lower], [arm.ratio.upper - arm.ratio.estimate]],
            fmt=marker,
            markersize=4,
            color=colour,
            markerfacecolor=hollow(colour, valid=not arm.reason),
            elinewidth=1,
            capsize=2,
            label=label,
            zorder=3,
        )
        label = None


def _limits(ax: Axes, cases: list[Comparison]) -> None:
    """The fastest that the copy and the op's stated floor allow, as dashes across the case."""
    for line, label in (("-", "equally large copy"), (":", "the op's stated floor")):
        shown: str | None = label
        for row, one in enumerate(cases):
            base = one.baseline
            limit_us = one.copy_us if line == "-" else one.floor_us
            if base is None or base.time_us is None or limit_us is None or one.l2_resident:
                continue
            x = base.time_us.estimate / limit_us
            ax.plot([x, x], [row - 0.42, row + 0.42], linestyle=line, color=INK, linewidth=1.4, label=shown)
            shown = None


def _ticks(ax: Axes) -> None:
    """Plain numbers, as many as the span bears."""
    low, high = ax.get_xlim()
    inside = [x for x in _TICKS if low <= x <= high]
    while len(inside) > _MOST_TICKS:
        one = inside.index(1.0) if 1.0 in inside else 0
        inside = [x for index, x in enumerate(inside) if index % 2 == one % 2]
    ax.set_xticks(inside)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    ax.xaxis.set_minor_formatter(NullFormatter())
