"""Time against the bytes the op must move, beside a copy of as many bytes in the same run."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.report.plots.speedup import candidate_names, title
from harness.report.plots.style import INK, WIDTH_IN, hollow, legend, look, new_figure, style
from harness.schema.verdict import ArmVerdict, Comparison, RowVerdict

_MIB = 2**20


def draw_roofline(row: RowVerdict) -> Figure:
    """Both axes are logarithmic, so an equal distance to the line is an equal share of it."""
    names = candidate_names(row)
    with look():
        figure = new_figure(WIDTH_IN, 5.0 + 0.16 * (len(names) // 2))
        ax = figure.subplots()
        _panel(ax, _with_copy(row.cards[0].comparisons), names)
        ax.set_title(title(row))
        legend(figure)
    return figure


def _with_copy(comparisons: tuple[Comparison, ...]) -> list[Comparison]:
    found = [one for one in comparisons if one.context is None and one.copy_us is not None and one.bytes_moved]
    return sorted(found, key=lambda one: one.bytes_moved or 0)


def _panel(ax: Axes, cases: list[Comparison], names: list[str]) -> None:
    mib = [(one.bytes_moved or 0) / _MIB for one in cases]
    copies = [one.copy_us or 0.0 for one in cases]
    ax.plot(mib, copies, color=INK, linewidth=1.4, label="an equally large copy in this run", zorder=1)
    resident = [(x, y) for x, y, one in zip(mib, copies, cases, strict=True) if one.l2_resident]
    if resident:
        ax.plot(*zip(*resident, strict=True), "x", color=INK, label="fits in L2: the line is no limit", zorder=2)
    base = [(x, one.baseline) for x, one in zip(mib, cases, strict=True) if one.baseline is not None]
    _points(ax, base, INK, "*", "torch.compile")
    for index, name in enumerate(names):
        arms = [(x, arm) for x, one in zip(mib, cases, strict=True) for arm in one.candidates if arm.id == name]
        _points(ax, arms, *style(index), name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.grid(zorder=0)
    ax.set_xlabel("bytes the op must move, MiB")
    ax.set_ylabel("time per call, µs; the nearer to the line, the better")


def _points(ax: Axes, arms: list[tuple[float, ArmVerdict]], colour: str, marker: str, label: str) -> None:
    """One arm; hollow where its outcome is invalid."""
    shown: str | None = label
    for x, arm in arms:
        if arm.time_us is None:
            continue
        face = hollow(colour, valid=not arm.reason)
        ax.plot(
            x, arm.time_us.estimate, marker, color=colour, markerfacecolor=face, markersize=5, label=shown, zorder=3
        )
        shown = None
