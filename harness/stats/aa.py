"""A/A gates: the harness compares a program with itself, and must find nothing."""

import math
from dataclasses import dataclass

from harness.stats.distributions import t_quantile
from harness.stats.estimators import Interval
from harness.stats.rule import DEFAULT_TAU0_LOG_PCT
from harness.stats.units import FloatArray

SESSION_Z = 2.58
"""Two-sided 1 %: how often a sound session is refused."""
SESSION_SE_LIMIT_LOG_PCT = 0.15
FRESH_TOLERANCE_LOG_PCT = 0.5
"""Rolling gate of a machine without history: 3 to 5 processes can pass it."""
ROLLING_TOLERANCE_LOG_PCT = 0.25
"""Rolling gate of a machine with history: a quarter of the bar."""


@dataclass(frozen=True)
class GateResult:
    """Whether an A/A gate lets verdicts be made, and why not."""

    passed: bool
    reason: str
    """One sentence; empty when passed."""


def session_gate(
    x_log_pct: float,
    se_log_pct: float,
    tau0_log_pct: float = DEFAULT_TAU0_LOG_PCT,
    se_limit_log_pct: float = SESSION_SE_LIMIT_LOG_PCT,
) -> GateResult:
    """Gate on the one A/A process that opens a session: its estimate and standard error in log-percent.

    Refuses |x| > 2.58 sqrt(tau0² + se²), and a standard error above the limit, under which a bias would not show.
    """
    if se_log_pct > se_limit_log_pct:
        return GateResult(
            False, f"A/A noise inside one process is {se_log_pct:.2f} %, above the limit of {se_limit_log_pct:.2f} %"
        )
    limit = SESSION_Z * math.hypot(tau0_log_pct, se_log_pct)
    if abs(x_log_pct) > limit:
        return GateResult(False, f"A/A differs from itself by {x_log_pct:+.2f} %, beyond ±{limit:.2f} %")
    return GateResult(True, "")


def rolling_gate(x_log_pct: FloatArray, tolerance_log_pct: float) -> GateResult:
    """Equivalence test (two one-sided tests, 5 % each) on the A/A processes of one device and model, shape (n,).

    Passes when the 90 % t interval of their mean lies inside ±tolerance (Schuirmann 1987): a noisy machine must bring
    more processes, and a quiet one is not refused for a harmless bias. One process never passes.
    """
    n = len(x_log_pct)
    if n < 2:
        return GateResult(False, f"an equivalence test needs at least 2 A/A processes, there are {n}")
    interval = mean_interval(x_log_pct)
    if -tolerance_log_pct < interval.lower and interval.upper < tolerance_log_pct:
        return GateResult(True, "")
    return GateResult(
        False,
        f"the mean of {n} A/A processes is {interval.estimate:+.2f} % [{interval.lower:+.2f}, {interval.upper:+.2f}], "
        f"not inside ±{tolerance_log_pct:.2f} %",
    )


def mean_interval(x_log_pct: FloatArray, confidence: float = 0.90) -> Interval:
    """t interval of the mean of processes, shape (n,), n >= 2; confidence is two-sided."""
    n = len(x_log_pct)
    mean, se = float(x_log_pct.mean()), float(x_log_pct.std(ddof=1)) / math.sqrt(n)
    half_width = t_quantile((1 - confidence) / 2, n - 1) * se
    return Interval(mean, mean - half_width, mean + half_width, se, n - 1)
