"""From cases to an op, and from many p-values to a joint claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.schema.vocabulary import Outcome
from harness.stats.distributions import t_quantile
from harness.stats.estimators import Interval
from harness.stats.units import log_percent


@dataclass(frozen=True)
class CaseEffect:
    """What one case contributes to its op: how much time it takes, and the candidate's log-ratio on it."""

    baseline_us: float
    """Time of one call of the baseline."""
    calls: int
    """Calls per step of the model."""
    effect: Interval
    """Log-ratio of baseline over candidate, log-percent."""
    allowance_log_pct: float = 0.0
    """Bound on its systematic error: how far the same code was from itself in that measurement."""


def weighted_log_ratio(cases: Sequence[CaseEffect], confidence: float = 0.95) -> Interval:
    """Log-ratio of the total times over all cases, R = 100 ln(sum n t / sum n t exp(-r/100)), with a t interval.

    n calls, t the baseline's time, r the case's log-ratio with standard error s and df degrees of freedom. By the
    delta method dR/dr_i is the case's share c_i of the candidate's total time, so SE² = sum c_i² s_i², with
    Welch-Satterthwaite df = SE⁴ / sum(c_i⁴ s_i⁴ / df_i). The baseline's times are taken as given: an error of theirs
    enters only with the difference of two shares, which is second order. Confidence is two-sided.

    Raises ValueError without cases, or for times, calls or standard errors that are not above zero.
    """
    if not cases:
        raise ValueError("no case to combine")
    baseline = np.array([case.baseline_us * case.calls for case in cases])
    r = np.array([case.effect.estimate for case in cases])
    s = np.array([case.effect.se for case in cases])
    df = np.array([case.effect.df for case in cases])
    if not ((baseline > 0).all() and np.isfinite(baseline).all() and (s > 0).all() and np.isfinite(r).all()):
        raise ValueError("times, calls and standard errors must be above zero and log-ratios finite")
    candidate = baseline * np.exp(-r / 100)
    estimate = 100 * math.log(baseline.sum() / candidate.sum())
    parts = (candidate / candidate.sum() * s) ** 2
    variance = float(parts.sum())
    df_total = variance**2 / float((parts**2 / df).sum())
    half_width = t_quantile((1 - confidence) / 2, df_total) * math.sqrt(variance)
    return Interval(estimate, estimate - half_width, estimate + half_width, math.sqrt(variance), df_total)


def weighted_allowance(cases: Sequence[CaseEffect]) -> float:
    """Bound on the systematic error of `weighted_log_ratio`: the cases' own, by their shares of the candidate's time.

    They are added up as if all had one sign: nothing says that they cancel.
    """
    times = [case.baseline_us * case.calls * math.exp(-case.effect.estimate / 100) for case in cases]
    return sum(time * case.allowance_log_pct for time, case in zip(times, cases, strict=True)) / sum(times)


def three_way(interval: Interval, band_pct: float = 1.0) -> Outcome:
    """FASTER, TIE, SLOWER or INCONCLUSIVE, from the interval of a log-ratio of baseline over candidate.

    The band is ±b, symmetric in log-percent, with b = -100 ln(1 - band/100): an improvement of `band_pct` percent of
    the baseline's time, and the slowdown that undoes it (1.0101 % for 1 %).
    """
    bar = log_percent(band_pct)
    if interval.lower >= bar:
        return Outcome.FASTER
    if interval.upper <= -bar:
        return Outcome.SLOWER
    if -bar < interval.lower and interval.upper < bar:
        return Outcome.TIE
    return Outcome.INCONCLUSIVE


def holm(p_values: Sequence[float], level: float = 0.025) -> tuple[bool, ...]:
    """Which hypotheses are rejected when the chance of any false rejection is to stay at `level` (Holm 1979).

    In the order given. Raises ValueError for p-values outside [0, 1].
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"p-values must lie between 0 and 1, got {list(p_values)}")
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > level / (len(p_values) - rank):
            break
        rejected[index] = True
    return tuple(rejected)
