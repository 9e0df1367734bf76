"""The three-way rule on sequences small enough to work out by hand, and what no input may do to it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.schema.vocabulary import Decision, Doubt
from harness.stats import (
    BAR_LOG_PCT,
    Budget,
    RuleSettings,
    block_orders,
    decide,
    improvement_percent,
    log_percent,
    pairs_per_process,
    processes_in_budget,
)
from harness.stats.levels import nominal_levels
from harness.stats.rule import between_process_sd, look
from harness.stats.units import FloatArray

DEFAULT = RuleSettings()


def process(level: float, spread: float = 0.1, pairs: int = 10) -> FloatArray:
    """Pairs symmetric about `level`, so that their Hodges-Lehmann estimate is `level`."""
    half = np.arange(1, pairs // 2 + 1) * spread / (pairs // 2)
    return level + np.concatenate([-half, half])


processes = st.lists(st.tuples(st.floats(-6, 6), st.floats(0.05, 2.0)), min_size=1, max_size=8).map(
    lambda rows: [process(level, spread) for level, spread in rows]
)


def test_the_formulas_by_hand() -> None:
    x, se, k = np.array([0.2, 0.5, 0.9]), np.array([0.1, 0.2, 0.1]), np.array([10, 10, 10])
    v = (5 * se**2 + 4 * np.mean(se**2)) / 9
    w = 1 / (0.2**2 + v)
    m = np.sum(w * x) / np.sum(w)
    q = np.sum(w * (x - m) ** 2)
    error = math.sqrt((4 + q) / 6 / np.sum(w))
    seen = look(x[None], se[None], k[None], np.array([4]), DEFAULT)
    assert float(seen.mean[0]) == pytest.approx(m)
    assert float(seen.se[0]) == pytest.approx(error)
    assert seen.df == 6
    assert float(seen.lower[0]) == pytest.approx(m - stats.t.isf(0.0166, 6) * error)
    assert float(seen.upper[0]) == pytest.approx(m + stats.t.isf(0.0120, 6) * error)
    assert float(seen.q_p_value[0]) == pytest.approx(stats.chi2.sf(q, 2))


def test_a_clear_gain_wins_at_the_third_process_and_not_before() -> None:
    gains = [process(3.0), process(3.1), process(2.9)]
    assert decide(gains[:1], 4, DEFAULT).decision is Decision.CONTINUE
    assert decide(gains[:2], 4, DEFAULT).decision is Decision.CONTINUE
    ruling = decide(gains, 4, DEFAULT)
    assert (ruling.decision, ruling.n, ruling.p_max, ruling.pairs) == (Decision.WIN, 3, 4, (10, 10, 10))
    assert ruling.mean_log_pct == pytest.approx(3.0, abs=0.01)
    assert ruling.gain_pct == improvement_percent(ruling.mean_log_pct)
    assert 1.0 < ruling.gain_lower_pct < ruling.gain_pct < ruling.gain_upper_pct
    assert ruling.win_p_value < 0.025 < 0.9 < ruling.no_win_p_value
    assert (ruling.doubt, ruling.more_processes, ruling.regression) == (None, None, False)
    assert ruling.tau_hat_log_pct == pytest.approx(0.08, abs=0.05)


@pytest.mark.defence("stats_p_loss")
def test_no_change_is_no_win_at_the_second_process_and_not_before() -> None:
    nothing = [process(-0.05), process(0.05)]
    assert decide(nothing[:1], 4, DEFAULT).decision is Decision.CONTINUE
    ruling = decide(nothing, 4, DEFAULT)
    assert (ruling.decision, ruling.regression, ruling.n) == (Decision.NO_WIN, False, 2)
    assert ruling.no_win_p_value < 0.025
    assert decide(nothing[:1], 4, RuleSettings(p_loss=1)).decision is Decision.NO_WIN


def test_a_slowdown_is_a_regression() -> None:
    ruling = decide([process(-3.0), process(-3.0)], 4, DEFAULT)
    assert (ruling.decision, ruling.regression) == (Decision.NO_WIN, True)
    assert ruling.gain_upper_pct < 0


@pytest.mark.defence("stats_p_win")
def test_two_processes_never_win() -> None:
    ruling = decide([process(20.0), process(20.0)], 2, DEFAULT)
    assert ruling.decision is Decision.INCONCLUSIVE
    assert math.isfinite(ruling.lower_log_pct)
    assert ruling.win_p_value == 1.0
    assert ruling.more_processes == 1


@pytest.mark.defence("stats_q_guard")
def test_processes_that_disagree_do_not_win() -> None:
    """Compile lottery: a large gain in most starts and twice that in one. The mean is far above the bar."""
    ruling = decide([process(5.0), process(5.0), process(7.0), process(5.0)], 4, DEFAULT)
    assert ruling.lower_log_pct > BAR_LOG_PCT
    assert ruling.q_p_value < 0.01
    assert (ruling.decision, ruling.doubt, ruling.more_processes) == (
        Decision.INCONCLUSIVE,
        Doubt.HETEROGENEOUS,
        None,
    )


def test_doubts_and_what_would_settle_them() -> None:
    at_bar = decide([process(level) for level in (0.75, 0.85, 0.8, 0.8)], 4, DEFAULT)
    assert (at_bar.decision, at_bar.doubt) == (Decision.INCONCLUSIVE, Doubt.AT_BAR)
    noise = decide([process(level, 5.0) for level in (2.2, 2.5, 2.4)], 3, DEFAULT)
    assert (noise.decision, noise.doubt) == (Decision.INCONCLUSIVE, Doubt.NOISE)
    assert noise.more_processes == 4
    hopeless = decide([process(BAR_LOG_PCT)] * 4, 4, DEFAULT)
    assert (hopeless.doubt, hopeless.more_processes) == (Doubt.AT_BAR, None)


@pytest.mark.parametrize(("level", "said"), [(0.8, Decision.NO_WIN), (1.2, Decision.WIN)])
def test_as_many_more_processes_as_it_says_do_settle_it(level: float, said: Decision) -> None:
    """The sequence is resumed with a P_max declared for it, its processes going on alike."""
    sequence = [process(level + (0.1 if index % 2 == 0 else -0.1), 0.4) for index in range(8)]
    ruling = decide(sequence[:4], 4, DEFAULT)
    assert (ruling.decision, ruling.more_processes) == (Decision.INCONCLUSIVE, 4)
    assert decide(sequence[:6], 6, DEFAULT).decision is Decision.INCONCLUSIVE
    assert decide(sequence, 8, DEFAULT).decision is said


def test_a_clock_that_drifts_one_percent_a_run_gives_no_verdict_but_no_change() -> None:
    """A/A in ABBA/BAAB blocks: a pair reads +1 or -1 %, a block 0."""
    for seed in range(50):
        sequence = []
        for start in range(4):
            firsts = np.array([order[0] for order in block_orders(2, 6, seed=100 * seed + start)])
            forward = np.where(firsts == 0, 1.0, -1.0)
            sequence.append(log_percent(1.0) * np.stack([forward, -forward], axis=1).ravel())
        ruling = decide(sequence, 4, DEFAULT)
        assert ruling.decision in (Decision.NO_WIN, Decision.INCONCLUSIVE)
        assert not ruling.regression
        assert ruling.mean_log_pct == pytest.approx(0.0, abs=1e-9)


def test_processes_after_the_decision_change_nothing() -> None:
    nothing = [process(0.0), process(0.0)]
    assert decide([*nothing, process(9.0), process(9.0)], 6, DEFAULT) == decide(nothing, 6, DEFAULT)


@settings(max_examples=60)
@given(processes)
def test_decision_follows_from_the_interval(ps: list[FloatArray]) -> None:
    ruling = decide(ps, 8, DEFAULT)
    win = ruling.n >= 3 and ruling.lower_log_pct >= BAR_LOG_PCT and ruling.q_p_value >= 0.01
    no_win = ruling.n >= 2 and ruling.upper_log_pct < BAR_LOG_PCT
    assert (ruling.decision is Decision.WIN) is win
    assert (ruling.decision is Decision.NO_WIN) is no_win
    assert ruling.lower_log_pct < ruling.mean_log_pct < ruling.upper_log_pct
    assert min(ruling.process_log_pct) - 1e-9 <= ruling.mean_log_pct <= max(ruling.process_log_pct) + 1e-9
    if win:
        assert ruling.win_p_value <= 0.02501
    if no_win:
        assert ruling.no_win_p_value <= 0.02501
    assert all(math.isfinite(v) for v in dataclasses.astuple(ruling) if isinstance(v, float))


@settings(max_examples=60)
@given(processes, st.integers(0, 7))
def test_a_look_does_not_depend_on_the_order_of_processes(ps: list[FloatArray], turn: int) -> None:
    x = np.array([[float(np.median(d)) for d in ps]])
    se, k = np.full_like(x, 0.2), np.full(x.shape, 10)
    order = np.roll(np.arange(len(ps)), turn)
    a = look(x, se, k, np.array([8]), DEFAULT)
    b = look(x[:, order], se, k, np.array([8]), DEFAULT)
    assert (float(a.mean[0]), float(a.se[0])) == pytest.approx((float(b.mean[0]), float(b.se[0])))


@settings(max_examples=60)
@given(processes, st.floats(-3, 3))
def test_a_look_moves_with_a_shift(ps: list[FloatArray], shift: float) -> None:
    x = np.array([[float(np.median(d)) for d in ps]])
    se, k = np.full_like(x, 0.2), np.full(x.shape, 10)
    a = look(x, se, k, np.array([8]), DEFAULT)
    b = look(x + shift, se, k, np.array([8]), DEFAULT)
    assert float(b.mean[0]) == pytest.approx(float(a.mean[0]) + shift, abs=1e-9)
    assert float(b.se[0]) == pytest.approx(float(a.se[0]))


@settings(max_examples=60)
@given(processes, st.floats(0, 3))
def test_a_larger_gain_never_turns_a_win_away(ps: list[FloatArray], more: float) -> None:
    if decide(ps, 8, DEFAULT).decision is Decision.WIN:
        assert decide([d + more for d in ps], 8, DEFAULT).decision is Decision.WIN
    if decide(ps, 8, DEFAULT).decision is Decision.NO_WIN:
        assert decide([d - more for d in ps], 8, DEFAULT).decision is Decision.NO_WIN


def test_many_sequences_at_once_equal_one_by_one() -> None:
    rng = np.random.default_rng(0)
    d = rng.normal(1.2, 0.6, (40, 4, 12))
    for rows in d:
        alone = decide(list(rows), 4, DEFAULT)
        x = np.array([alone.process_log_pct])
        se = np.array([alone.process_se_log_pct])
        seen = look(x, se, np.full(x.shape, 12), np.array([4]), DEFAULT)
        assert float(seen.lower[0]) == alone.lower_log_pct
        assert bool(seen.win[0]) is (alone.decision is Decision.WIN)


def test_interval_where_no_win_is_possible_is_still_finite() -> None:
    ruling = decide([process(0.4)], 1, DEFAULT)
    assert ruling.decision is Decision.INCONCLUSIVE
    assert math.isfinite(ruling.lower_log_pct)
    assert math.isfinite(ruling.upper_log_pct)
    assert ruling.tau_hat_log_pct is None
    assert nominal_levels(3)[1] == 0.025


@pytest.mark.parametrize(
    ("ps", "p_max", "why"),
    [
        ([], 4, "was given 0"),
        ([process(0.0)] * 5, 4, "declared for 4 processes was given 5"),
        ([process(0.0)], 0, "p_max must lie between 1 and 16"),
        ([process(0.0)], 17, "p_max must lie between 1 and 16"),
        ([np.array([0.0, np.nan, 1.0])], 4, "finite"),
        ([np.array([0.0])], 4, "at least 2 values"),
    ],
)
def test_bad_sequences_are_refused(ps: list[FloatArray], p_max: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decide(ps, p_max, DEFAULT)


@pytest.mark.parametrize("bad", [{"tau0_log_pct": -0.1}, {"tau0_log_pct": math.inf}, {"p_loss": 3}])
def test_bad_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RuleSettings(**bad)  # type: ignore[arg-type]


def test_pairs_per_process_by_hand() -> None:
    budget = Budget(total_s=600, start_s=40, pair_s=4)
    pilot = np.array([-0.5, 0.5, -0.3, 0.3, -0.1, 0.1])
    # one value winsorised at each end: sd of -.3 -.3 -.1 .1 .3 .3, kept 4: SE = sd sqrt(5 / 12)
    sd = np.std([-0.3, -0.3, -0.1, 0.1, 0.3, 0.3], ddof=1) * math.sqrt(5 / 12) * math.sqrt(6)
    wanted = 2 * math.ceil(math.sqrt(10) * sd / 0.2 / 2)
    assert wanted == 8
    assert pairs_per_process(pilot, budget, DEFAULT) == wanted
    assert pairs_per_process(pilot * 0, budget, DEFAULT) == 6
    assert pairs_per_process(pilot * 100, budget, DEFAULT) == 24
    # three processes must fit: (300/3 - 40)/4 = 15 pairs, made even
    assert pairs_per_process(pilot * 100, Budget(300, 40, 4), DEFAULT) == 14
    assert pairs_per_process(pilot * 100, Budget(60, 40, 4), DEFAULT) == 6
    assert pairs_per_process(pilot, budget, RuleSettings(tau0_log_pct=0.0)) == 24
    with pytest.raises(ValueError, match="first 6 pairs"):
        pairs_per_process(pilot[:5], budget, DEFAULT)


@given(st.floats(-90, 90), st.integers(0, 2**32 - 1))
def test_the_number_of_pairs_does_not_look_at_the_effect(effect: float, seed: int) -> None:
    pilot = np.random.default_rng(seed).normal(0, 0.5, 6).round(6)
    budget = Budget(600, 40, 4)
    assert pairs_per_process(pilot + effect, budget, DEFAULT) == pairs_per_process(pilot, budget, DEFAULT)


def test_processes_in_budget() -> None:
    assert processes_in_budget(8, Budget(300, 40, 4)) == 4
    assert processes_in_budget(15, Budget(300, 40, 4)) == 3
    assert processes_in_budget(8, Budget(300, 20, 1)) == 8
    assert processes_in_budget(24, Budget(60, 40, 4)) == 1
    with pytest.raises(ValueError, match="above zero"):
        Budget(300, 0, 4)


def test_between_process_sd_is_the_one_of_dersimonian_and_laird() -> None:
    # equal weights: tau² = var(x) - se²
    x = np.array([0.0, 0.4, 0.8])
    assert between_process_sd(x, np.full(3, 0.1)) == pytest.approx(math.sqrt(0.16 - 0.01))
    assert between_process_sd(x / 100, np.full(3, 0.1)) == 0.0
