"""The ratio to torch.compile over the runs in the store: one panel for each case, changes marked as far as believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from harness.report.pictures import HISTORY_RUNS
from harness.report.plots.speedup import candidate_names
from harness.report.plots.style import INK, WIDTH_IN, legend, look, new_figure, style
from harness.schema.history import Change, Metric, Series, Standing
from harness.schema.verdict import RowVerdict

MOST_PANELS = 12
_COLUMNS = 2
_Z = 1.96
_CONFIRMED = (Standing.REGRESSION, Standing.IMPROVEMENT)


def draw_history(row: RowVerdict, series: Sequence[Series], changes: Sequence[Change]) -> Figure:
    """Cases of the card that decides the row, most runs first where there are more than fit."""
    key = row.cards[0].device.key
    mine = [
        one
        for one in series
        if one.key.op == row.op
        and one.key.device_key == key
        and one.key.metric is Metric.RATIO
        and one.key.context is None
    ]
    by_case: dict[str, list[Series]] = {}
    for one in mine:
        by_case.setdefault(one.key.where, []).append(one)
    long_enough = {
        case: found for case, found in by_case.items() if max(len(one.runs) for one in found) >= HISTORY_RUNS
    }
    kept = sorted(long_enough, key=lambda case: -max(len(one.runs) for one in long_enough[case]))[:MOST_PANELS]
    names = [*candidate_names(row), *(one.key.arm for one in mine)]
    order = list(dict.fromkeys(names))
    columns = max(1, min(_COLUMNS, len(kept)))
    lines = max(1, math.ceil(len(kept) / columns))
    with look():
        figure = new_figure(WIDTH_IN, 1.2 + 1.9 * lines)
        axes = figure.subplots(lines, columns, squeeze=False).ravel()
        for ax, case in zip(axes, kept, strict=False):
            _panel(ax, case, by_case[case], changes, order)
        for ax in axes[len(kept) :]:
            ax.set_axis_off()
        left_out = f", {len(long_enough) - len(kept)} more cases left out" if len(long_enough) > len(kept) else ""
        title = f"{row.title} on {row.cards[0].device.name}: ratio to torch.compile, run by run{left_out}"
        figure.suptitle(title, color=INK, fontsize=10)
        legend(figure, columns=3)
    return figure


def _panel(ax: Axes, case: str, series: Sequence[Series], changes: Sequence[Change], order: list[str]) -> None:
    ax.axhline(1.0, color=INK, linewidth=0.8, zorder=1)
    for one in series:
        colour, marker = style(order.index(one.key.arm))
        when = [datetime.fromisoformat(run.started_at) for run in one.runs]
        ratio = [math.exp(run.value_log_pct / 100) for run in one.runs]
        low = [
            value - math.exp((run.value_log_pct - _Z * run.se_log_pct) / 100)
            for value, run in zip(ratio, one.runs, strict=True)
        ]
        high = [
            math.exp((run.value_log_pct + _Z * run.se_log_pct) / 100) - value
            for value, run in zip(ratio, one.runs, strict=True)
        ]
        ax.errorbar(
            when,  # type: ignore[arg-type]  # matplotlib converts dates
            ratio,
            yerr=[low, high],
            fmt=marker,
            linestyle="-",
            linewidth=0.8,
            markersize=3,
            elinewidth=0.8,
            color=colour,
            label=one.key.arm,
            zorder=3,
        )
        for change in changes:
            if change.key == one.key:
                _mark(ax, change, colour)
    ax.set_title(case, fontsize=8)
    locator = AutoDateLocator(maxticks=6)  # type: ignore[no-untyped-call]
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    ax.grid(axis="y", zorder=0)


def _mark(ax: Axes, change: Change, colour: str) -> None:
    """A change point: a full line where the rule confirms it, dots where it is only suspected."""
    believed = change.standing in _CONFIRMED
    label = {
        Standing.REGRESSION: "regression, confirmed by the rule",
        Standing.IMPROVEMENT: "improvement, confirmed by the rule",
        Standing.UNDER_THE_BAR: "change of less than 1 %",
    }.get(change.standing, "suspected change, not confirmed")
    ax.axvline(
        datetime.fromisoformat(change.after.started_at),  # type: ignore[arg-type]  # matplotlib converts dates
        color=colour,
        linewidth=1.6 if believed else 1.0,
        linestyle="-" if believed else ":",
        label=label,
        zorder=2,
    )
