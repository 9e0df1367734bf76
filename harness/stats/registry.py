"""What finished cells say about the spread between processes, and what the rule may therefore assume."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.stats.distributions import chi2_quantile
from harness.stats.rule import RuleSettings
from harness.stats.units import FloatArray

MIN_CELLS = 10
"""Finished cells before the registry's bound replaces the guess."""
BOUND_CONFIDENCE = 0.8


@dataclass(frozen=True)
class FinishedCell:
    """The processes of one finished comparison, shape (n,) each, log-percent."""

    x: FloatArray
    """Process estimates."""
    se: FloatArray
    """Their standard errors."""


def _generalised_q(tau2: float, cells: Sequence[FinishedCell]) -> float:
    total = 0.0
    for cell in cells:
        weights = 1 / (tau2 + cell.se**2)
        mean = (weights * cell.x).sum() / weights.sum()
        total += float((weights * (cell.x - mean) ** 2).sum())
    return total


def tau_upper_bound(cells: Sequence[FinishedCell], confidence: float = BOUND_CONFIDENCE) -> float:
    """Upper confidence bound of the standard deviation between processes, log-percent, pooled over cells.

    The tau at which the generalised Q statistic, sum over cells of sum w (x - m)² with w = 1/(tau² + se²), equals the
    (1 - confidence) quantile of chi² with sum (n - 1) degrees of freedom (DerSimonian and Kacker 2007; Viechtbauer
    2007); 0 where even tau = 0 explains the spread. Raises ValueError when no cell has two processes.
    """
    from scipy import optimize  # as long to import as all the rest, and asked for by few

    df = sum(len(cell.x) - 1 for cell in cells)
    if df < 1:
        raise ValueError("the spread between processes needs a cell with at least two processes")
    target = chi2_quantile(1 - confidence, df)
    if _generalised_q(0.0, cells) <= target:
        return 0.0
    most = 1.0
    while _generalised_q(most, cells) > target:
        most *= 4
    return math.sqrt(optimize.brentq(lambda tau2: _generalised_q(tau2, cells) - target, 0.0, most))


def settings_from_registry(cells: Sequence[FinishedCell]) -> RuleSettings:
    """The rule's settings: its defaults until there are 10 finished cells of two or more processes.

    From then on tau0 is the upper 80 % bound, and NO_WIN may be said after the first process.
    """
    usable = [cell for cell in cells if len(cell.x) >= 2]
    if len(usable) < MIN_CELLS:
        return RuleSettings()
    return RuleSettings(tau0_log_pct=tau_upper_bound(usable), p_loss=1)
