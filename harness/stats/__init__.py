"""Intervals, the three-way rule, and what keeps them honest. numpy and scipy only; nothing here reads or writes files.

All effects are in log-percent, positive when the candidate takes less time than the baseline (`harness.stats.units`).
"""

from harness.stats.aa import (
    FRESH_TOLERANCE_LOG_PCT,
    ROLLING_TOLERANCE_LOG_PCT,
    SESSION_SE_LIMIT_LOG_PCT,
    GateResult,
    rolling_gate,
    session_gate,
)
from harness.stats.combine import CaseEffect, holm, three_way, weighted_log_ratio
from harness.stats.estimators import Interval, hl_interval, hodges_lehmann, trimmed_se
from harness.stats.orders import block_orders
from harness.stats.registry import FinishedCell, settings_from_registry, tau_upper_bound
from harness.stats.rule import (
    PILOT_PAIRS,
    Budget,
    RuleSettings,
    Ruling,
    decide,
    pairs_per_process,
    processes_in_budget,
)
from harness.stats.units import BAR_LOG_PCT, improvement_percent, log_percent, log_ratios

__all__ = [
    "BAR_LOG_PCT",
    "FRESH_TOLERANCE_LOG_PCT",
    "PILOT_PAIRS",
    "ROLLING_TOLERANCE_LOG_PCT",
    "SESSION_SE_LIMIT_LOG_PCT",
    "Budget",
    "CaseEffect",
    "FinishedCell",
    "GateResult",
    "Interval",
    "RuleSettings",
    "Ruling",
    "block_orders",
    "decide",
    "hl_interval",
    "hodges_lehmann",
    "holm",
    "improvement_percent",
    "log_percent",
    "log_ratios",
    "pairs_per_process",
    "processes_in_budget",
    "rolling_gate",
    "session_gate",
    "settings_from_registry",
    "tau_upper_bound",
    "three_way",
    "trimmed_se",
    "weighted_log_ratio",
]
