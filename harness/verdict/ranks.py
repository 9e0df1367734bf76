"""What the ranks of a measurement saw, in figures: no outcome rests on these, a reviewer may ask for them."""

import numpy as np

from harness.schema.measurement import Measurement, RankTimes
from harness.schema.verdict import RankFigures


def rank_figures(of: Measurement) -> RankFigures | None:
    """The ranks' own durations and how far apart they began; None for a case of one rank."""
    if of.ranks is None:
        return None
    timed = [(arm, arm.rank_times) for arm in of.arms if arm.rank_times is not None]
    skews = np.concatenate([np.ravel(times.skews_us) for _, times in timed]) if timed else np.zeros(1)
    return RankFigures(
        ranks=len(of.ranks.devices),
        skew_us_median=float(np.median(skews)),
        skew_us_max=float(skews.max()),
        uncertainty_us=max((times.uncertainty_us for _, times in timed), default=0.0),
        seen_us={arm.id: _seen_us(times) for arm, times in timed},
    )


def _seen_us(times: RankTimes) -> tuple[float, ...]:
    """By rank, the median of its own durations, µs per call."""
    durations = np.asarray(times.durations_us)  # blocks, out and back, ranks
    return tuple(float(value) for value in np.median(durations, axis=(0, 1)))
