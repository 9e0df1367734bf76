"""From the times of one process to what the rule takes, and from the rule against several baselines to one answer."""

from collections.abc import Sequence

import numpy as np

from harness.schema.vocabulary import Decision
from harness.stats.units import FloatArray, log_ratios

Pairs = Sequence[tuple[float, float]]
"""Per block: time per run on the way out and on the way back."""


def pair_log_ratios(base_ms: Pairs, arm_ms: Pairs, fixed_ms: float = 0.0, times: int = 1) -> FloatArray:
    """K log-ratios of base over arm of one process, log-percent, two per block: 100 ln((F + n t_base)/(F + n t_arm)).

    `fixed_ms` is F, the time of what else a request is made of, and `times` is n, the runs of this part in it.
    """
    base, arm = (fixed_ms + times * np.ravel(np.asarray(pairs)) for pairs in (base_ms, arm_ms))
    return np.asarray(log_ratios(base, arm))


def joint(decisions: Sequence[Decision]) -> Decision:
    """One answer against several baselines: WIN needs all of them (each test holds its level, so the intersection does
    too), NO_WIN needs one. Raises ValueError without any."""
    if not decisions:
        raise ValueError("no decision to join")
    if all(decision is Decision.WIN for decision in decisions):
        return Decision.WIN
    if any(decision is Decision.NO_WIN for decision in decisions):
        return Decision.NO_WIN
    return Decision.INCONCLUSIVE
