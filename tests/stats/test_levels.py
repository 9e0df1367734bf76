"""The nominal levels keep the promise of 2.5 % over all looks."""

import numpy as np
import pytest
from scipy import stats

from harness.stats.levels import (
    _NOMINAL,
    FAMILY_LEVEL,
    FAMILY_LEVELS,
    FIRST_LOOKS,
    MAX_PROCESSES,
    NU0,
    family_p_value,
    nominal_levels,
    simulate_levels,
)

REPLICATES = 150_000


def test_stored_levels_are_what_a_simulation_finds() -> None:
    found = simulate_levels(REPLICATES, seed=11)
    for first_look in FIRST_LOOKS:
        stored = np.array(_NOMINAL[first_look])
        assert stored.shape == found[first_look].shape == (MAX_PROCESSES - first_look + 1, len(FAMILY_LEVELS))
        # four Monte Carlo standard errors, and half a unit of the third digit
        error = np.sqrt((1 - np.array(FAMILY_LEVELS)) / (np.array(FAMILY_LEVELS) * REPLICATES))
        assert (np.abs(found[first_look] / stored - 1) < 4 * error + 0.005).all()


@pytest.mark.parametrize(
    ("first_look", "published"),
    [
        (1, {2: 0.0147, 3: 0.0108, 4: 0.0088, 8: 0.0056, 10: 0.0050}),
        (2, {3: 0.0157, 4: 0.0119, 6: 0.0085, 8: 0.0069, 10: 0.0059}),
        (3, {4: 0.0165, 5: 0.0127, 6: 0.0106, 8: 0.0082, 10: 0.0069}),
    ],
)
def test_levels_agree_with_the_design_s_own_table(first_look: int, published: dict[int, float]) -> None:
    for p_max, level in published.items():
        assert nominal_levels(first_look)[p_max] == pytest.approx(level, rel=0.02)


@pytest.mark.defence("stats_look_levels")
@pytest.mark.parametrize(("first_look", "p_max"), [(2, 4), (3, 8)])
def test_all_looks_together_err_at_the_promised_rate(first_look: int, p_max: int) -> None:
    """Written apart from `simulate_levels`: cumulative slices, variances by numpy."""
    rng = np.random.default_rng(5)
    rows = 120_000
    x = rng.normal(0, 1, (rows, p_max)) * np.sqrt(NU0 / rng.chisquare(NU0, rows))[:, None]
    level = nominal_levels(first_look)[p_max]
    crossed, uncorrected = np.zeros(rows, bool), np.zeros(rows, bool)
    for n in range(first_look, p_max + 1):
        seen = x[:, :n]
        moderated = (NU0 + (n - 1) * (seen.var(axis=1, ddof=1) if n > 1 else 0)) / (NU0 + n - 1)
        t = seen.mean(axis=1) / np.sqrt(moderated / n)
        crossed |= t > stats.t.isf(level, NU0 + n - 1)
        uncorrected |= t > stats.t.isf(FAMILY_LEVEL, NU0 + n - 1)
    assert crossed.mean() == pytest.approx(FAMILY_LEVEL, abs=4 * (0.025 * 0.975 / rows) ** 0.5)
    assert uncorrected.mean() > 1.6 * FAMILY_LEVEL


def test_more_looks_cost_level_and_a_later_start_gives_it_back() -> None:
    for first_look in FIRST_LOOKS:
        levels = nominal_levels(first_look)
        assert (levels[: first_look + 1] == FAMILY_LEVEL).all()
        assert (np.diff(levels[first_look:]) < 0).all()
    assert (nominal_levels(1)[4:] < nominal_levels(2)[4:]).all()
    assert (nominal_levels(2)[4:] < nominal_levels(3)[4:]).all()


@pytest.mark.parametrize(("first_look", "p_max"), [(1, 1), (2, 5), (3, 8), (3, 16)])
def test_family_p_value_crosses_the_level_where_the_look_does(first_look: int, p_max: int) -> None:
    level = nominal_levels(first_look)[p_max]
    assert family_p_value(level, first_look, p_max) == pytest.approx(FAMILY_LEVEL)
    assert (
        family_p_value(level * 0.999, first_look, p_max)
        < FAMILY_LEVEL
        < family_p_value(level * 1.001, first_look, p_max)
    )
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 400)])
    values = [family_p_value(float(p), first_look, p_max) for p in grid]
    assert (np.diff(values) >= 0).all()
    assert values[-1] == pytest.approx(1.0)
    # never smaller than the look's own p-value, never beyond Bonferroni
    looks = p_max - first_look + 1
    assert all(p * 0.99 <= value <= looks * p * 1.01 + 1e-15 for p, value in zip(grid, values, strict=True))


def test_a_look_that_never_comes_has_no_evidence() -> None:
    assert family_p_value(1e-9, first_look=3, p_max=2) == 1.0
