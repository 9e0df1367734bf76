"""How quiet a run was: what the same code differed by from itself, and what the GPU did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.report.plots.speedup import title
from harness.report.plots.style import COLOURS, INK, WIDTH_IN, band, hollow, legend, look, new_figure
from harness.schema.measurement import TelemetryRecord
from harness.schema.verdict import CardVerdict, Comparison, RowVerdict, by_measurement
from harness.schema.vocabulary import Role

_CONTROLS = (
    (Role.CONTROL, "the same code again", COLOURS[0], "o"),
    (Role.TWIN, "a second compile of the same formula", COLOURS[2], "^"),
)
_FOLLOWED: tuple[tuple[str, tuple[tuple[str, Callable[[TelemetryRecord], float], str], ...]], ...] = (
    (
        "SM clock, MHz",
        (
            ("median", lambda seen: seen.sm_clock_mhz_median, "-"),
            ("lowest", lambda seen: seen.sm_clock_mhz_min, ":"),
        ),
    ),
    ("power, W", (("median", lambda seen: seen.power_w_median, "-"),)),
    ("hottest, °C", (("hottest", lambda seen: seen.temperature_c_max, "-"),)),
)


def draw_run(row: RowVerdict) -> Figure:
    """Differences, noise, and telemetry where there was any, in the order of measuring, of the deciding card."""
    measured = _in_order(row.cards[0])
    watched = any(one.telemetry.available for one in measured)
    heights = [1.8, 1.0, *([0.8] * len(_FOLLOWED) if watched else [])]
    with look():
        figure = new_figure(WIDTH_IN, 1.4 + 1.25 * sum(heights))
        panels = figure.subplots(
            len(heights), 1, squeeze=False, sharex="col", gridspec_kw={"height_ratios": heights}
        ).ravel()
        panels[0].set_title(title(row))
        _differences(panels[0], measured)
        _noise(panels[1], measured)
        for ax, (label, curves) in zip(panels[2:], _FOLLOWED, strict=False):
            _telemetry(ax, measured, label, curves)
        panels[-1].set_xlabel("measurements in the order they were made")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(figure)
    return figure


def _in_order(card: CardVerdict) -> list[Comparison]:
    """Each measurement that counts, once."""
    return sorted((group[0] for group in by_measurement(card.comparisons)), key=lambda one: one.started_at)


def _differences(ax: Axes, measured: Sequence[Comparison]) -> None:
    band(ax, -1, 1, "±1 %", vertical=False)
    ax.axhline(0, color=INK, linewidth=0.8, zorder=1)
    for place, (role, name, colour, marker) in enumerate(_CONTROLS):
        label: str | None = name
        for x, one in enumerate(measured):
            for arm in one.controls:
                if arm.role is not role or arm.effect_log_pct is None:
                    continue
                span = arm.effect_log_pct
                ax.errorbar(
                    x + 0.16 * (2 * place - 1),
                    span.estimate,
                    yerr=[[span.estimate - span.lower], [span.upper - span.estimate]],
                    fmt=marker,
                    markersize=3.5,
                    color=colour,
                    markerfacecolor=hollow(colour, valid=not one.invalid),
                    elinewidth=1,
                    capsize=2,
                    label=label,
                    zorder=3,
                )
                label = None
    ax.set_ylabel("A/A: difference\nto the baseline, %")
    ax.grid(axis="y", zorder=0)


def _noise(ax: Axes, measured: Sequence[Comparison]) -> None:
    """Half-width of the interval of the baseline's time, percent of it."""
    points = [
        (x, 50 * (arm.time_us.upper - arm.time_us.lower) / arm.time_us.estimate)
        for x, one in enumerate(measured)
        if (arm := one.baseline) is not None and arm.time_us is not None
    ]
    if points:
        ax.plot(
            *zip(*points, strict=True), "D", color=COLOURS[3], markersize=3.5, label="interval of the baseline's time"
        )
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(lambda value, _: "")
    ax.set_ylabel("half-width, %\nof the time")
    ax.grid(axis="y", zorder=0)


def _telemetry(
    ax: Axes,
    measured: Sequence[Comparison],
    label: str,
    curves: Sequence[tuple[str, Callable[[TelemetryRecord], float], str]],
) -> None:
    seen = [(x, one.telemetry) for x, one in enumerate(measured) if one.telemetry.available]
    for name, read, line in curves:
        ax.plot(
            [x for x, _ in seen],
            [read(one) for _, one in seen],
            line,
            color=INK,
            linewidth=1,
            marker=".",
            markersize=4,
            label=f"{label.split(',')[0]}: {name}" if len(curves) > 1 else None,
        )
    throttled = [(x, curves[0][1](one)) for x, one in seen if one.throttle_reasons]
    if throttled:
        ax.plot(*zip(*throttled, strict=True), "o", color=COLOURS[1], markersize=3, label="throttled for some of it")
    ax.set_ylabel(label)
    ax.grid(axis="y", zorder=0)
