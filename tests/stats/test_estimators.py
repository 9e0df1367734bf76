"""One process: the estimate moves with the data and with nothing else, and the interval covers as often as it says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from harness.schema.vocabulary import Outcome
from harness.stats import (
    BAR_LOG_PCT,
    block_orders,
    hl_interval,
    hodges_lehmann,
    improvement_percent,
    log_percent,
    log_ratios,
    three_way,
    trimmed_se,
)
from harness.stats.estimators import SE_FLOOR_LOG_PCT
from harness.stats.units import FloatArray

log_pct = st.floats(min_value=-50, max_value=50, allow_nan=False).map(lambda value: round(value, 6))
samples = arrays(np.float64, st.integers(2, 30), elements=log_pct)
near = pytest.approx


def test_hodges_lehmann_is_the_median_of_the_pairwise_means() -> None:
    # Walsh averages of 1, 2, 9: 1, 1.5, 5, 2, 5.5, 9 -> median of 1 1.5 2 5 5.5 9
    assert float(hodges_lehmann(np.array([1.0, 2.0, 9.0]))) == near(3.5)
    assert hodges_lehmann(np.array([[1.0, 2.0, 9.0], [0.0, 0.0, 3.0]])) == near(np.array([3.5, 0.75]))


def test_trimmed_se_against_scipy_and_by_hand() -> None:
    d = np.random.default_rng(0).normal(0, 1, 23)
    se, df = trimmed_se(d)
    # scipy's trimmed t statistic (Yuen) is (trimmed mean - 0) / SE
    reference = stats.ttest_ind(d, np.zeros(23), trim=0.2, equal_var=False)
    assert float(stats.trim_mean(d, 0.2) / se) == near(float(reference.statistic), rel=1e-12)
    assert df == 23 - 2 * 4 - 1 == near(float(reference.df))
    # 5 values: one winsorised at each end -> 2 2 3 4 4, sd 1, kept 3: 1 * sqrt(4 / 6)
    se, df = trimmed_se(np.array([-90.0, 2.0, 3.0, 4.0, 70.0]))
    assert (float(se), df) == (near((4 / 6) ** 0.5), 2)


@given(samples, log_pct)
def test_hodges_lehmann_moves_with_a_shift_and_the_spread_does_not(d: FloatArray, shift: float) -> None:
    assert float(hodges_lehmann(d + shift)) == near(float(hodges_lehmann(d)) + shift, abs=1e-9)
    assert float(trimmed_se(d + shift)[0]) == near(float(trimmed_se(d)[0]), abs=1e-9)


@given(samples)
def test_swapping_the_arms_flips_the_sign_and_nothing_else(d: FloatArray) -> None:
    there, back = hl_interval(d), hl_interval(-d)
    assert (back.estimate, back.lower, back.upper) == near((-there.estimate, -there.upper, -there.lower), abs=1e-9)
    assert (back.se, back.df) == near((there.se, there.df), abs=1e-9)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_blocks_does_not_matter(d: FloatArray, random: object) -> None:
    shuffled = np.random.default_rng(random.getrandbits(32)).permutation(d)  # type: ignore[attr-defined]
    assert hl_interval(shuffled) == hl_interval(d)


@given(samples, st.floats(0.1, 10))
def test_scale(d: FloatArray, factor: float) -> None:
    assert float(hodges_lehmann(factor * d)) == near(factor * float(hodges_lehmann(d)), abs=1e-9)
    se, scaled = float(trimmed_se(d)[0]), float(trimmed_se(factor * d)[0])
    if min(se, scaled) > SE_FLOOR_LOG_PCT:
        assert scaled == near(factor * se)


@given(samples)
def test_estimate_lies_within_the_data_and_confidence_widens(d: FloatArray) -> None:
    narrow, wide = hl_interval(d, 0.9), hl_interval(d, 0.99)
    assert d.min() <= narrow.estimate <= d.max()
    assert wide.lower < narrow.lower <= narrow.estimate <= narrow.upper < wide.upper


def test_ties_of_a_coarse_clock_do_not_claim_perfect_knowledge() -> None:
    interval = hl_interval(np.zeros(20))
    assert interval.se == SE_FLOOR_LOG_PCT
    assert interval.upper == near(float(stats.t.ppf(0.975, 11)) * SE_FLOOR_LOG_PCT)


def test_half_the_samples_may_be_late_by_a_lot_without_moving_the_estimate_far() -> None:
    rng = np.random.default_rng(1)
    d = rng.normal(0, 0.2, 40)
    d[:8] += 500.0
    assert abs(float(hodges_lehmann(d))) < 0.3
    assert d.mean() > 90


@pytest.mark.parametrize("n", [8, 20, 60])
def test_the_interval_covers_as_often_as_it_says(n: int) -> None:
    rng = np.random.default_rng(n)
    d = rng.normal(0, 0.4, (4000, n))
    se, df = trimmed_se(d)
    covered = np.abs(hodges_lehmann(d)) <= stats.t.isf(0.025, df) * se
    # nominal 95 %, Monte Carlo error 0.35 points
    assert 0.935 < covered.mean() < 0.965


@pytest.mark.defence("stats_se_of_interval")
def test_same_code_is_not_judged_faster() -> None:
    """Two samples of one distribution, and two that differ by exactly the bar: FASTER at most at the nominal 2.5 %."""
    rng = np.random.default_rng(7)
    for heavy in (False, True):
        said: dict[float, list[Outcome]] = {0.0: [], BAR_LOG_PCT: []}
        for _ in range(1000):
            noise = rng.standard_t(3, (2, 20)) if heavy else rng.normal(0, 1, (2, 20))
            base_us = 50 * np.exp(noise[0] / 100)
            for effect, outcomes in said.items():
                twin_us = 50 * np.exp((noise[1] - effect) / 100)
                outcomes.append(three_way(hl_interval(log_ratios(base_us, twin_us))))
        assert said[0.0].count(Outcome.FASTER) + said[0.0].count(Outcome.SLOWER) <= 5
        # at the bar itself the nominal rate is reached: 25 of 1000, three standard errors are 15
        assert said[BAR_LOG_PCT].count(Outcome.FASTER) <= 40
        assert said[BAR_LOG_PCT].count(Outcome.SLOWER) == 0


@pytest.mark.parametrize("arms", [2, 5])
def test_a_clock_that_drifts_one_percent_a_run_shows_no_change(arms: int) -> None:
    """A/A under a drift of 1 % a run: every arm against the first is a TIE, whatever the seed."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        run, times = 0, np.empty((arms, 30, 2))
        for block, order in enumerate(block_orders(arms, 30, seed)):
            for way, arm in [(0, arm) for arm in order] + [(1, arm) for arm in reversed(order)]:
                times[arm, block, way] = 50 * 1.01**run * np.exp(rng.normal(0, 0.1) / 100)
                run += 1
        per_block = np.sqrt(times[:, :, 0] * times[:, :, 1])
        for arm in range(1, arms):
            assert three_way(hl_interval(log_ratios(per_block[0], per_block[arm]))) is Outcome.TIE


def test_without_the_way_back_and_the_coin_the_same_drift_would_show() -> None:
    runs = 50 * 1.01 ** np.arange(60.0)
    first, second = runs[0::2], runs[1::2]
    assert three_way(hl_interval(log_ratios(second, first))) is Outcome.INCONCLUSIVE
    assert three_way(hl_interval(log_ratios(runs[30:], runs[:30]))) is Outcome.FASTER


def test_block_orders_are_seeded_fair_permutations() -> None:
    assert block_orders(2, 6, seed=3) == block_orders(2, 6, seed=3)
    assert block_orders(4, 50, seed=3) != block_orders(4, 50, seed=4)
    orders = block_orders(2, 2000, seed=0)
    assert set(orders) == {(0, 1), (1, 0)}
    assert abs(orders.count((0, 1)) - 1000) < 100
    many = np.array(block_orders(6, 3000, seed=0))
    assert (np.sort(many, axis=1) == np.arange(6)).all()
    # every arm is in every place about equally often: 500 expected, sd 20
    for place in range(6):
        assert np.abs(np.bincount(many[:, place], minlength=6) - 500).max() < 100


@pytest.mark.parametrize(("arms", "blocks"), [(1, 5), (2, 0)])
def test_no_order_for_no_comparison(arms: int, blocks: int) -> None:
    with pytest.raises(ValueError, match="at least 2 arms and 1 block"):
        block_orders(arms, blocks, 0)


def test_log_percent_and_back() -> None:
    assert near(1.0050336) == BAR_LOG_PCT
    assert log_percent(50) == near(100 * np.log(2))
    assert improvement_percent(log_percent(12.5)) == near(12.5)
    assert improvement_percent(-BAR_LOG_PCT) == near(-1.010101)
    assert log_ratios(200.0, 100.0) == near(log_percent(50))
    with pytest.raises(ValueError, match="below 100 %"):
        log_percent(100)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and above zero"):
        log_ratios(np.array([1.0, bad]), np.array([1.0, 1.0]))
    with pytest.raises(ValueError, match="finite and above zero"):
        log_ratios(1.0, bad)


def test_bad_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 values"):
        hl_interval(np.array([1.0]))
    with pytest.raises(ValueError, match="finite"):
        hl_interval(np.array([1.0, np.nan, 2.0]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        hl_interval(np.array([1.0, 2.0]), confidence=95)


@settings(max_examples=50)
@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(2, 12)), elements=log_pct))
def test_rows_at_once_equal_rows_one_by_one(d: FloatArray) -> None:
    assert hodges_lehmann(d) == near(np.array([float(hodges_lehmann(row)) for row in d]))
    assert trimmed_se(d)[0] == near(np.array([float(trimmed_se(row)[0]) for row in d]))
