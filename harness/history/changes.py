"""Change points of a series: a trigger, which says where to look and nothing of what is true."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.errors import UserError
from harness.schema.history import Change, Run, Series, Standing
from harness.stats.units import FloatArray

MIN_RUNS = 8
"""Fewer tell neither the spread of a series nor two levels."""
MIN_SEGMENT = 3
"""A level is at least so many runs: two nights are a bad weekend."""
PENALTY = 8.0
"""Times ln n: what a change point must explain, in squares of the series' spread."""
CLIP = 5.0
"""Spreads from the median at which a run is winsorised: one wild night is no level."""
SPREAD_FLOOR_LOG_PCT = 0.05
"""As the rule believes no process to better than this."""


def change_points(values_log_pct: FloatArray) -> list[int]:
    """Indices of the first run of every new level, shape (n,) to ascending indices.

    Kernel change points with a linear kernel (Celisse et al. 2018, as `ruptures` has it) on the series less its median
    over its spread, winsorised; at least 3 runs a level; penalty 8 ln n. The spread is 1.4826 MAD of the differences
    between neighbours over √2: that of the values themselves would hold the step, and a step in the middle of the
    series would hide itself however large. Raises UserError where `ruptures` is missing.
    """
    n = len(values_log_pct)
    if n < MIN_RUNS:
        return []
    steps = np.diff(values_log_pct)
    spread = 1.4826 * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    centred = (values_log_pct - np.median(values_log_pct)) / max(spread, SPREAD_FLOOR_LOG_PCT)
    signal = np.clip(centred, -CLIP, CLIP)
    found = _ruptures().KernelCPD(kernel="linear", min_size=MIN_SEGMENT).fit(signal[:, None])
    return [int(index) for index in found.predict(pen=PENALTY * np.log(n))[:-1]]


def can_find() -> bool:
    """Whether the package that finds change points is here."""
    return importlib.util.find_spec("ruptures") is not None


def _ruptures() -> Any:
    try:
        import ruptures
    except ImportError:
        raise UserError(
            "the package ruptures, which finds change points, is not installed: pip install 'ruptures>=1.1.10'."
        ) from None
    return ruptures


def changes_of(series: Series) -> Iterator[Change]:
    """Every change of a series, all merely suspected."""
    values = np.array([run.value_log_pct for run in series.runs])
    points = change_points(values)
    bounds = [0, *points, len(values)]
    for start, point, end in zip(bounds, points, bounds[2:], strict=False):
        boundary = _boundary(series.runs, point)
        yield Change(
            key=series.key,
            before=series.runs[boundary - 1],
            after=series.runs[boundary],
            runs_before=point - start,
            runs_after=end - point,
            shift_log_pct=float(np.median(values[point:end]) - np.median(values[start:point])),
            differs=differences(series.runs[boundary - 1], series.runs[boundary]),
            standing=Standing.SUSPECTED,
            why="",
        )


def _boundary(runs: Sequence[Run], point: int) -> int:
    """The first run of the new build: at the change point, or up to two runs beside it, for it is an estimate."""
    near = (point, point - 1, point + 1, point - 2, point + 2)
    inside = (index for index in near if 0 < index < len(runs))
    return next((index for index in inside if runs[index - 1].build != runs[index].build), point)


def differences(old: Run, new: Run) -> tuple[str, ...]:
    """What is recorded of two runs, where they differ; the card last."""
    names = dict.fromkeys([*old.build, *new.build])
    changed = [
        f"{name} {old.build.get(name, 'none')} → {new.build.get(name, 'none')}"
        for name in names
        if old.build.get(name) != new.build.get(name)
    ]
    if old.card != new.card:
        changed.append(f"card {old.card} → {new.card}")
    return tuple(changed)
