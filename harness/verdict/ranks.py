"""What the ranks of a measurement saw, in figures: no outcome rests on these, a reviewer may ask for them."""

import numpy as np

from harness.schema.figures import RankFigures
from harness.schema.measurement import Measurement, RankTimes
from harness.schema.process import ProcessRecord


def rank_figures(*records: Measurement | ProcessRecord) -> RankFigures | None:
    """The ranks' own durations and how far apart they began, over one measurement or the processes of a cell.

    None for one rank.
    """
    ranks = next((of.ranks for of in records if of.ranks is not None), None)
    if ranks is None:
        return None
    timed: dict[str, list[RankTimes]] = {}
    for of in records:
        for arm in of.arms:
            if arm.rank_times is not None:
                timed.setdefault(arm.id, []).append(arm.rank_times)
    all_times = [times for of_arm in timed.values() for times in of_arm]
    skews = np.concatenate([np.ravel(times.skews_us) for times in all_times]) if all_times else np.zeros(1)
    return RankFigures(
        ranks=len(ranks.devices),
        skew_us_median=float(np.median(skews)),
        skew_us_max=float(skews.max()),
        uncertainty_us=max((times.uncertainty_us for times in all_times), default=0.0),
        seen_us={arm: _seen_us(of_arm) for arm, of_arm in timed.items()},
    )


def _seen_us(times: list[RankTimes]) -> tuple[float, ...]:
    """By rank, the median of its own durations, µs per call or run."""
    durations = np.concatenate([np.asarray(one.durations_us) for one in times])  # blocks, out and back, ranks
    return tuple(float(value) for value in np.median(durations, axis=(0, 1)))
