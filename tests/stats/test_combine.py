"""From cases to an op: weights by time and calls; three answers; a joint claim at one level."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schema.vocabulary import Outcome
from harness.stats import BAR_LOG_PCT, CaseEffect, Interval, holm, log_percent, three_way, weighted_log_ratio
from harness.stats.combine import weighted_allowance
from harness.stats.estimators import widened

limit = st.floats(-20, 20, allow_nan=False)


def effect(estimate: float, se: float = 0.1, df: float = 11) -> Interval:
    return Interval(estimate, estimate - 2 * se, estimate + 2 * se, se, df)


def interval(lower: float, upper: float) -> Interval:
    return Interval((lower + upper) / 2, lower, upper, max((upper - lower) / 4, 0.01), 10)


@pytest.mark.defence("stats_call_weights")
def test_a_gain_on_the_large_shape_does_not_hide_the_loss_on_the_many_calls() -> None:
    # 94 % of the time in 940 calls of a small shape that loses 10 %, 6 % in one large call that gains 20 %
    cases = [CaseEffect(1.0, 940, effect(100 * math.log(1 / 1.1))), CaseEffect(60.0, 1, effect(100 * math.log(1.25)))]
    combined = weighted_log_ratio(cases)
    assert combined.estimate == pytest.approx(100 * math.log(1000 / (940 * 1.1 + 60 / 1.25)))
    assert three_way(combined) is Outcome.SLOWER
    geometric_mean = sum(case.effect.estimate for case in cases) / 2
    assert three_way(effect(geometric_mean)) is Outcome.FASTER


def test_delta_method_against_simulation() -> None:
    rng = np.random.default_rng(2)
    r, s, weight = np.array([1.0, 8.0, -4.0]), np.array([0.3, 0.9, 0.5]), np.array([70.0, 20.0, 40.0])
    drawn = r + s * rng.normal(0, 1, (200_000, 3))
    ratios = 100 * np.log(weight.sum() / (weight * np.exp(-drawn / 100)).sum(axis=1))
    combined = weighted_log_ratio(
        [CaseEffect(w / 2, 2, effect(a, b, 1e9)) for w, a, b in zip(weight, r, s, strict=True)]
    )
    assert combined.estimate == pytest.approx(float(ratios.mean()), abs=0.01)
    assert combined.se == pytest.approx(float(ratios.std()), rel=0.01)
    assert (combined.upper - combined.lower) / 2 == pytest.approx(1.96 * combined.se, rel=0.001)


def test_welch_satterthwaite_between_the_smallest_df_and_their_sum() -> None:
    one = weighted_log_ratio([CaseEffect(10.0, 3, effect(2.0, 0.2, 7))])
    assert (one.estimate, one.se, one.df) == pytest.approx((2.0, 0.2, 7))
    equal = weighted_log_ratio([CaseEffect(10.0, 1, effect(2.0, 0.2, 7)) for _ in range(4)])
    assert (equal.se, equal.df) == pytest.approx((0.1, 28))
    lopsided = weighted_log_ratio(
        [CaseEffect(10.0, 1, effect(2.0, 5.0, 7)), CaseEffect(10.0, 1, effect(2.0, 0.01, 40))]
    )
    assert lopsided.df == pytest.approx(7, rel=0.01)


@given(
    st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(1, 500), limit), min_size=1, max_size=8), st.floats(1e-3, 1e3)
)
def test_the_unit_of_time_does_not_matter_and_the_total_lies_between_its_parts(
    rows: list[tuple[float, int, float]], unit: float
) -> None:
    cases = [CaseEffect(t, n, effect(r)) for t, n, r in rows]
    rescaled = [CaseEffect(t * unit, n, effect(r)) for t, n, r in rows]
    combined = weighted_log_ratio(cases)
    assert weighted_log_ratio(rescaled).estimate == pytest.approx(combined.estimate, abs=1e-9)
    estimates = [case.effect.estimate for case in cases]
    assert min(estimates) - 1e-9 <= combined.estimate <= max(estimates) + 1e-9


@pytest.mark.parametrize(
    "bad", [CaseEffect(0.0, 1, effect(1.0)), CaseEffect(1.0, 0, effect(1.0)), CaseEffect(1.0, 1, effect(math.nan))]
)
def test_impossible_cases_are_refused(bad: CaseEffect) -> None:
    with pytest.raises(ValueError, match="above zero"):
        weighted_log_ratio([bad])
    with pytest.raises(ValueError, match="no case"):
        weighted_log_ratio([])


@pytest.mark.parametrize(
    ("lower", "upper", "outcome"),
    [
        (BAR_LOG_PCT, 3.0, Outcome.FASTER),
        (1.0, 3.0, Outcome.INCONCLUSIVE),
        (-1.0, 1.0, Outcome.TIE),
        (0.2, 0.9, Outcome.TIE),
        (-1.0, BAR_LOG_PCT, Outcome.INCONCLUSIVE),
        (-5.0, -BAR_LOG_PCT, Outcome.SLOWER),
        (-5.0, -1.0, Outcome.INCONCLUSIVE),
        (-9.0, 9.0, Outcome.INCONCLUSIVE),
    ],
)
def test_three_answers(lower: float, upper: float, outcome: Outcome) -> None:
    assert three_way(interval(lower, upper)) is outcome


@given(limit, limit, st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 5))
def test_a_wider_interval_only_loses_its_answer(a: float, b: float, left: float, right: float, band: float) -> None:
    narrow = three_way(interval(min(a, b), max(a, b)), band)
    wide = three_way(interval(min(a, b) - left, max(a, b) + right), band)
    assert wide in (narrow, Outcome.INCONCLUSIVE)


@given(limit, limit, st.floats(0.1, 5))
def test_swapping_the_arms_swaps_the_answer(a: float, b: float, band: float) -> None:
    swapped = {Outcome.FASTER: Outcome.SLOWER, Outcome.SLOWER: Outcome.FASTER}
    said = three_way(interval(min(a, b), max(a, b)), band)
    assert three_way(interval(-max(a, b), -min(a, b)), band) is swapped.get(said, said)


@given(limit, limit, limit)
def test_a_better_estimate_never_reads_worse(a: float, b: float, gain: float) -> None:
    rank = [Outcome.SLOWER, Outcome.TIE, Outcome.FASTER]
    before = three_way(interval(min(a, b), max(a, b)))
    after = three_way(interval(min(a, b) + abs(gain), max(a, b) + abs(gain)))
    if before in rank and after in rank:
        assert rank.index(after) >= rank.index(before)


def test_the_band_is_an_improvement_of_the_baseline_s_time() -> None:
    assert three_way(interval(log_percent(2.0), 9.0), band_pct=2.0) is Outcome.FASTER
    assert three_way(interval(log_percent(1.99), 9.0), band_pct=2.0) is Outcome.INCONCLUSIVE


def test_holm_by_hand() -> None:
    # sorted .004 .010 .012 .020 against .025/4 .025/3 .025/2 .025: stops at the second
    assert holm([0.010, 0.004, 0.020, 0.012]) == (False, True, False, False)
    assert holm([0.005, 0.004, 0.020, 0.012]) == (True, True, True, True)
    assert holm([]) == ()
    assert holm([0.025]) == (True,)
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, 1.5])


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.2))
def test_holm_rejects_the_smallest_and_no_more_than_uncorrected(p_values: list[float], level: float) -> None:
    rejected = holm(p_values, level)
    for p, said in zip(p_values, rejected, strict=True):
        assert not said or p <= level
        assert p > level / max(len(p_values), 1) or said
    kept = [p for p, said in zip(p_values, rejected, strict=True) if not said]
    assert all(p <= q for p, said in zip(p_values, rejected, strict=True) if said for q in kept)


@pytest.mark.defence("stats_holm")
def test_holm_keeps_the_joint_error_rate() -> None:
    rng = np.random.default_rng(4)
    p = rng.random((4000, 10))
    wrong = np.mean([any(holm(list(row))) for row in p])
    assert wrong == pytest.approx(0.025, abs=0.008)
    assert np.mean((p <= 0.025).any(axis=1)) > 0.2


def test_allowances_add_up_by_share_of_time_whatever_their_signs() -> None:
    cases = [
        CaseEffect(10.0, 3, effect(0.0, 0.1, 9), allowance_log_pct=2.0),
        CaseEffect(70.0, 1, effect(0.0, 0.1, 9)),
    ]
    assert weighted_allowance(cases) == pytest.approx(0.6)
    half_the_time = [CaseEffect(60.0, 1, effect(100 * math.log(2), 0.1, 9), allowance_log_pct=2.0), cases[1]]
    assert weighted_allowance(half_the_time) == pytest.approx(2.0 * 30 / 100)
    wide = widened(effect(1.0, 0.1, 9), 0.6)
    assert (wide.estimate, wide.se) == (1.0, 0.1)
    assert wide.upper - effect(1.0, 0.1, 9).upper == pytest.approx(0.6)
    assert effect(1.0, 0.1, 9).lower - wide.lower == pytest.approx(0.6)
