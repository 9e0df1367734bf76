"""K, the pairs of every process of a sequence, from the first ones of process 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.e2e.protocol import CellSettings
from harness.e2e.timing import Blocks
from harness.stats.rule import PILOT_PAIRS, Budget, RuleSettings, pairs_per_process
from harness.stats.units import log_ratios


def pairs_wanted(kept: Blocks, later: Sequence[int], start_s: float, settings: CellSettings) -> int:
    """K by the arm that spreads most of those that later processes have, and by what such a process costs.

    `later`: their numbers among the timed arms, the baseline's 0 first; `start_s`: C0 of a later process. What process
    0 alone has and does says nothing of the others.
    """
    base, *others = (kept.times_ms[arm][: PILOT_PAIRS // 2] for arm in later)
    pair_s = sum(kept.block_s) / len(kept.block_s) / 2 * len(later) / len(kept.times_ms)
    budget = Budget(settings.budget_s, max(start_s, 1.0), pair_s)
    rule = RuleSettings(tau0_log_pct=settings.tau0_log_pct)
    wanted = (int(pairs_per_process(np.ravel(log_ratios(base, pairs)), budget, rule)) for pairs in others)
    return max(wanted, default=PILOT_PAIRS)
