"""Self-calibration: the rule's error rates on a machine's own stored A/A processes.

The process is the unit. Sequences are drawn from whole stored processes, with replacement; a trace is never cut into
several, for then the differences between processes would be lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.stats.estimators import hodges_lehmann, trimmed_se
from harness.stats.rule import (
    MIN_PAIRS,
    P_CAP,
    PILOT_PAIRS,
    Budget,
    RuleSettings,
    pairs_per_process,
    processes_in_budget,
)
from harness.stats.simulate import Sequences, process_seconds
from harness.stats.units import FloatArray, log_ratios


@dataclass(frozen=True)
class Trace:
    """One stored A/A process: the arm and the time of every run, in time order."""

    order: str
    """`A` or `B` per run, in ABBA or BAAB blocks."""
    ms: FloatArray
    """Shape (len(order),)."""
    start_s: float
    """Cost of starting the process and building both arms."""

    def __post_init__(self) -> None:
        runs = len(self.order)
        blocks = {self.order[i : i + 4] for i in range(0, runs, 4)}
        if runs < 4 or self.ms.shape != (runs,) or not blocks <= {"ABBA", "BAAB"}:
            raise ValueError(f"a trace is one time for each run of ABBA or BAAB blocks, got {self.order!r}")

    @property
    def log_ratios(self) -> FloatArray:
        """100 ln(A / B) of every pair of neighbouring runs, shape (runs / 2,)."""
        first, second = self.ms[0::2], self.ms[1::2]
        sign = np.where(np.array(list(self.order[0::2])) == "A", 1.0, -1.0)
        return np.asarray(sign * log_ratios(first, second))

    @property
    def pair_s(self) -> float:
        """Median time of a pair, seconds."""
        return 2 * float(np.median(self.ms)) / 1e3


def resample(
    traces: Sequence[Trace],
    total_s: float,
    replicates: int,
    rng: np.random.Generator,
    settings: RuleSettings,
    pairs: int | None = None,
) -> Sequences:
    """Sequences of whole processes drawn with replacement, the names of the two arms swapped by a fair coin.

    K follows from the first six pairs of the first process drawn, the median costs of the traces and the budget, and
    is cut to the shortest trace; `pairs` fixes it instead, with P_max = 8. A process contributes its first K pairs.
    Raises ValueError when a trace is shorter than 6 pairs or than `pairs`.
    """
    shortest = min(len(trace.log_ratios) for trace in traces) // 2 * 2
    if shortest < (pairs or MIN_PAIRS):
        raise ValueError(f"the shortest trace has {shortest} pairs, {pairs or MIN_PAIRS} are needed")
    d = np.array([trace.log_ratios[:shortest] for trace in traces])
    budget = Budget(
        total_s, float(np.median([t.start_s for t in traces])), float(np.median([t.pair_s for t in traces]))
    )
    if pairs is None:
        pairs_by_trace = np.minimum(pairs_per_process(d[:, :PILOT_PAIRS], budget, settings), shortest)
    else:
        pairs_by_trace = np.full(len(traces), pairs)

    drawn = rng.integers(0, len(traces), (replicates, P_CAP))
    swapped = np.where(rng.random((replicates, P_CAP)) < 0.5, -1.0, 1.0)
    k = pairs_by_trace[drawn[:, 0]]
    x, se = np.empty((replicates, P_CAP)), np.empty((replicates, P_CAP))
    for value in np.unique(k):
        rows = k == value
        x[rows] = swapped[rows] * hodges_lehmann(d[:, :value])[drawn[rows]]
        se[rows] = trimmed_se(d[:, :value])[0][drawn[rows]]
    p_max = processes_in_budget(k, budget) if pairs is None else np.full(replicates, P_CAP)
    return Sequences(x, se, k, p_max, process_seconds(k, budget))
