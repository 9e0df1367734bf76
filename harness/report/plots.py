"""`reports/<op>.png`: the ratio to torch.compile, by case and candidate, with intervals. Not compared by `verify`."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.report import text
from harness.report.matrix import device_name
from harness.schema.verdict import ArmVerdict, CardVerdict, Comparison, RowVerdict

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's colours, told apart with any colour vision; markers differ too."""
MARKERS = "os^Dv<>P"
_INCHES_PER_ARM = 0.16


def style(index: int) -> tuple[str, str]:
    """Colour and marker of the index-th candidate; markers move on by one with each round of colours."""
    return COLOURS[index % len(COLOURS)], MARKERS[(index + index // len(COLOURS)) % len(MARKERS)]


def draw(row: RowVerdict, file: Path) -> None:
    """One panel for each card, cases from top to bottom."""
    panels = [(card, [one for one in card.comparisons if one.context is None]) for card in row.cards]
    names = list(
        dict.fromkeys(arm.id for _, cases in panels for one in cases for arm in one.candidates if arm.ratio is not None)
    )
    rows = max(len(cases) for _, cases in panels)
    height = 1.9 + rows * (0.22 + _INCHES_PER_ARM * max(1, len(names)))
    figure = Figure(figsize=(3.0 + 6.4 * len(panels), height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (card, cases) in zip(axes, panels, strict=True):
        _panel(ax, cases, names)
        ax.set_title(f"{row.title} on {_title(card, row)}", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    for ax in axes[1:]:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(file, dpi=150, metadata={"Software": None})


def _title(card: CardVerdict, row: RowVerdict) -> str:
    torch = text.listed(card.packages.get("torch", ("?",)))
    return f"{device_name(card, row)}, torch {torch}"


def _panel(ax: Axes, cases: list[Comparison], names: list[str]) -> None:
    pitch = 0.8 / max(1, len(names))
    ax.axvspan(0.99, 1 / 0.99, color="0.88", zorder=0, label="±1 % (TIE)")
    ax.axvline(1.0, color="0.4", linewidth=0.8, zorder=1)
    _limits(ax, cases)
    for index, name in enumerate(names):
        arms = [(row, arm) for row, one in enumerate(cases) for arm in one.candidates if arm.id == name]
        _points(ax, [(row - 0.4 + pitch * (index + 0.5), arm) for row, arm in arms], index, name)
    ax.set_yticks(range(len(cases)), [f"{one.case.id}\n{text.short_shape(one.case)}" for one in cases], fontsize=7)
    ax.set_ylim(len(cases) - 0.5, -0.5)
    ax.set_xscale("log", base=2)
    _ticks(ax)
    ax.set_xlabel("t(torch.compile) / t(candidate), 95 % interval; right of the line is faster", fontsize=8)
    ax.tick_params(axis="x", labelsize=8)
    ax.grid(axis="x", color="0.92", zorder=0)
    for between in range(1, len(cases)):
        ax.axhline(between - 0.5, color="0.92", linewidth=0.8, zorder=0)


def _points(ax: Axes, arms: list[tuple[float, ArmVerdict]], index: int, name: str) -> None:
    """One candidate; hollow where the outcome is invalid, so that a figure never hides a doubt."""
    colour, marker = style(index)
    label: str | None = name
    for y, arm in arms:
        if arm.ratio is None:
            continue
        valid = not arm.reason
        ax.errorbar(
            arm.ratio.estimate,
            y,
            xerr=[[arm.ratio.estimate - arm.ratio.lower], [arm.ratio.upper - arm.ratio.estimate]],
            fmt=marker,
            markersize=4,
            color=colour,
            markerfacecolor=colour if valid else "white",
            elinewidth=1,
            capsize=2,
            label=label,
            zorder=3,
        )
        label = None


def _limits(ax: Axes, cases: list[Comparison]) -> None:
    """The fastest that the copy and the op's stated floor allow, as dashes across the case."""
    for style, colour, label in (("-", "0.2", "equally large copy"), (":", "0.2", "the op's stated floor")):
        shown: str | None = label
        for row, one in enumerate(cases):
            base = one.baseline
            limit_us = one.copy_us if style == "-" else one.floor_us
            if base is None or base.time_us is None or limit_us is None or one.l2_resident:
                continue
            x = base.time_us.estimate / limit_us
            ax.plot([x, x], [row - 0.42, row + 0.42], linestyle=style, color=colour, linewidth=1.2, label=shown)
            shown = None


def _ticks(ax: Axes) -> None:
    """Plain numbers, as many as the span bears."""
    low, high = ax.get_xlim()
    grid = (
        0.05,
        0.1,
        0.2,
        0.3,
        0.5,
        0.7,
        0.8,
        0.9,
        1.0,
        1.1,
        1.2,
        1.3,
        1.5,
        1.75,
        2,
        2.5,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        64,
    )
    inside = [x for x in grid if low <= x <= high]
    while len(inside) > 10:
        inside = [x for x in inside if x == 1.0 or inside.index(x) % 2 == inside.index(1.0) % 2]
    ax.set_xticks(inside)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
    ax.xaxis.set_minor_formatter(NullFormatter())
