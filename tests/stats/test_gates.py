"""A/A gates and the registry of the spread between processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.stats import (
    FRESH_TOLERANCE_LOG_PCT,
    ROLLING_TOLERANCE_LOG_PCT,
    FinishedCell,
    RuleSettings,
    rolling_gate,
    session_gate,
    settings_from_registry,
    tau_upper_bound,
)


def simulated_cells(rng: np.random.Generator, tau: float, cells: int, processes: int = 3) -> list[FinishedCell]:
    """Cells at run noise 0.5 % and K = 8: a standard error of 0.25 a process, known with 7 degrees of freedom."""
    se = 0.25 * np.sqrt(rng.chisquare(7, (cells, processes)) / 7)
    level = rng.normal(0, 1, (cells, 1))
    x = level + rng.normal(0, 1, (cells, processes)) * np.sqrt(tau**2 + 0.25**2)
    return [FinishedCell(one, error) for one, error in zip(x, se, strict=True)]


@pytest.mark.defence("stats_session_gate")
@pytest.mark.parametrize(
    ("x", "se", "passed", "why"),
    [
        (0.0, 0.1, True, ""),
        (0.576, 0.1, True, ""),  # 2.58 hypot(.2, .1) = .5769
        (-0.578, 0.1, False, "differs from itself by -0.58 %, beyond ±0.58 %"),
        (1.0, 0.1, False, "+1.00 %"),
        (0.0, 0.16, False, "noise inside one process is 0.16 %"),
    ],
)
def test_session_gate(x: float, se: float, passed: bool, why: str) -> None:
    result = session_gate(x, se)
    assert result.passed is passed
    assert why in result.reason


def test_session_gate_refuses_a_sound_session_once_in_a_hundred_and_a_biased_one_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, np.hypot(0.2, 0.1), 20_000)
    assert np.mean([not session_gate(value, 0.1).passed for value in x]) == pytest.approx(0.01, abs=0.003)
    assert np.mean([not session_gate(value + 1.0, 0.1).passed for value in x]) > 0.9


@pytest.mark.defence("stats_rolling_gate")
def test_rolling_gate_is_an_equivalence_test() -> None:
    harmless = 0.1 + np.tile([-0.05, 0.05], 8)
    assert rolling_gate(harmless, ROLLING_TOLERANCE_LOG_PCT).passed
    noisy = np.array([-0.9, 0.9, 0.4, -0.3])
    result = rolling_gate(noisy, ROLLING_TOLERANCE_LOG_PCT)
    assert not result.passed
    assert "the mean of 4 A/A processes is +0.0" in result.reason
    assert "not inside ±0.25 %" in result.reason
    biased = 0.6 + np.tile([-0.05, 0.05], 8)
    assert not rolling_gate(biased, FRESH_TOLERANCE_LOG_PCT).passed
    assert not rolling_gate(np.array([0.0]), FRESH_TOLERANCE_LOG_PCT).passed


@pytest.mark.parametrize("processes", [3, 9])
def test_rolling_gate_passes_a_machine_at_the_edge_at_most_one_time_in_twenty(processes: int) -> None:
    rng = np.random.default_rng(processes)
    x = rng.normal(ROLLING_TOLERANCE_LOG_PCT, 0.1, (4000, processes))
    assert np.mean([rolling_gate(row, ROLLING_TOLERANCE_LOG_PCT).passed for row in x]) <= 0.06


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=12), st.floats(0.05, 1))
def test_swapping_the_arms_does_not_change_an_a_a_gate(x: list[float], tolerance: float) -> None:
    assert rolling_gate(np.array(x), tolerance).passed is rolling_gate(-np.array(x), tolerance).passed
    assert session_gate(x[0], 0.1).passed is session_gate(-x[0], 0.1).passed


def test_tau_bound_solves_the_generalised_q_equation() -> None:
    cells = simulated_cells(np.random.default_rng(3), 0.4, 12)
    tau = tau_upper_bound(cells)
    q = sum(
        float((w * (cell.x - np.average(cell.x, weights=w)) ** 2).sum())
        for cell in cells
        for w in [1 / (tau**2 + cell.se**2)]
    )
    assert q == pytest.approx(float(stats.chi2.ppf(0.2, 24)), rel=1e-6)
    assert tau_upper_bound(cells, confidence=0.5) < tau < tau_upper_bound(cells, confidence=0.95)


@pytest.mark.parametrize("tau", [0.15, 0.3])
def test_tau_bound_lies_above_the_truth_four_times_in_five(tau: float) -> None:
    rng = np.random.default_rng(1)
    bounds = np.array([tau_upper_bound(simulated_cells(rng, tau, 10)) for _ in range(300)])
    assert 0.74 < np.mean(bounds >= tau) < 0.9
    assert np.median(bounds) < 1.8 * tau


def test_tau_bound_of_equal_processes_is_zero_and_of_wild_ones_large() -> None:
    same = [FinishedCell(np.array([1.0, 1.0, 1.0]), np.array([0.1, 0.1, 0.1]))]
    assert tau_upper_bound(same) == 0.0
    assert tau_upper_bound([FinishedCell(np.array([-40.0, 0.0, 40.0]), np.array([0.1, 0.1, 0.1]))]) > 40
    with pytest.raises(ValueError, match="at least two processes"):
        tau_upper_bound([FinishedCell(np.array([1.0]), np.array([0.1]))])


def test_the_registry_needs_ten_cells_of_two_processes() -> None:
    cells = simulated_cells(np.random.default_rng(0), 0.15, 10)
    single = FinishedCell(np.array([9.0]), np.array([0.1]))
    assert settings_from_registry([*cells[:9], single]) == RuleSettings(tau0_log_pct=0.20, p_loss=2)
    learned = settings_from_registry([*cells, single])
    assert learned == RuleSettings(tau0_log_pct=tau_upper_bound(cells), p_loss=1)
