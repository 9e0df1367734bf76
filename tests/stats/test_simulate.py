"""The rule as written, re-simulated: it errs as seldom as promised and still has the power to decide."""

from functools import cache

import numpy as np
import pytest

from harness.stats import RuleSettings, log_percent
from harness.stats.rule import MIN_PAIRS
from harness.stats.simulate import (
    TIER_300,
    Noise,
    Rates,
    Sequences,
    Spread,
    paired_noise,
    process_spread,
    rule_rates,
    run_noise,
    simulate_sequences,
)
from harness.stats.units import FloatArray

DEFAULT = RuleSettings()
REPLICATES = 4000


@cache
def at_300_s(noise: Noise) -> tuple[Sequences, FloatArray]:
    rng = np.random.default_rng([17, list(Noise).index(noise)])
    sequences = simulate_sequences(noise, TIER_300, REPLICATES, rng, DEFAULT)
    return sequences, process_spread(Spread.TAU_015, sequences.x.shape, rng)


def rates(noise: Noise, effect_pct: float) -> Rates:
    sequences, spread = at_300_s(noise)
    return rule_rates(sequences, effect_pct, DEFAULT, spread)


@pytest.mark.defence("stats_simulated_error_rates")
@pytest.mark.parametrize("noise", Noise)
def test_errors_near_the_bar_stay_below_three_percent(noise: Noise) -> None:
    assert rates(noise, 0.9).win <= 3.0
    assert rates(noise, 1.1).no_win <= 3.0
    assert rates(noise, 0.0).win <= 0.1
    assert rates(noise, 2.0).no_win <= 0.1


def test_the_rule_has_power() -> None:
    """INCONCLUSIVE for ever would never err; means over the nine noise models."""
    assert np.mean([rates(noise, 0.0).no_win for noise in Noise]) >= 85.0
    assert np.mean([rates(noise, 2.0).win for noise in Noise]) >= 90.0


def test_deciding_costs_no_more_than_the_budget_and_less_where_it_is_easy() -> None:
    for noise in Noise:
        for effect in (0.0, 1.0, 2.0):
            assert rates(noise, effect).seconds <= 300.0
    easy = rates(Noise.GAUSSIAN_02, 0.0)
    assert easy.seconds < 150 < rates(Noise.GAUSSIAN_02, 1.0).seconds
    # WIN needs three processes, NO_WIN two
    assert easy.processes == pytest.approx(2.0, abs=0.1)
    assert rates(Noise.GAUSSIAN_02, 3.0).processes == pytest.approx(3.0, abs=0.1)


def test_rates_add_up_and_rise_with_the_effect() -> None:
    said = [rates(Noise.HEAVY, effect) for effect in (0.0, 0.5, 1.0, 1.5, 2.0)]
    for one in said:
        assert one.win + one.no_win + one.inconclusive == pytest.approx(100.0)
    assert [one.win for one in said] == sorted(one.win for one in said)
    assert [one.no_win for one in said] == sorted((one.no_win for one in said), reverse=True)


@pytest.mark.defence("stats_p_loss")
def test_one_process_is_not_enough_while_tau0_is_a_guess() -> None:
    """Starts that differ by 1 %: saying NO_WIN after one process errs far more often at a true 1 %."""
    rng = np.random.default_rng(3)
    sequences = simulate_sequences(Noise.GAUSSIAN_05, TIER_300, REPLICATES, rng, DEFAULT)
    spread = rng.normal(0, 1.0, sequences.x.shape)
    early = rule_rates(sequences, 1.0, RuleSettings(p_loss=1), spread).no_win
    default = rule_rates(sequences, 1.0, DEFAULT, spread).no_win
    assert default < 17 < 20 < early


@pytest.mark.parametrize(
    ("noise", "sd", "lag1"),
    [
        (Noise.GAUSSIAN_02, 0.2, 0.0),
        (Noise.GAUSSIAN_2, 2.0, 0.0),
        (Noise.AR1, (1 + 0.04) ** 0.5, 0.95 / 1.04),
        (Noise.STEP, (36 * 0.25 * 0.75 + 0.09) ** 0.5, (1 - 1 / 20 - 1 / 60) * 6.75 / 6.84),
        (Noise.BIMODAL, (4 * 0.3 * 0.7 + 0.04) ** 0.5, 0.0),
        (Noise.HEAVY, (0.09 + 2 * 9 / 12 - (3 / 12) ** 2) ** 0.5, 0.0),
    ],
)
def test_noise_is_what_its_description_says(noise: Noise, sd: float, lag1: float) -> None:
    y = run_noise(noise, 20_000, 48, np.random.default_rng(1))
    assert y.shape == (20_000, 48)
    # stationary: over processes, at the first runs as at the last
    assert y[:, :3].std() == pytest.approx(sd, rel=0.05)
    assert y[:, -3:].std() == pytest.approx(sd, rel=0.05)
    assert np.corrcoef(y[:, 20], y[:, 21])[0, 1] == pytest.approx(lag1, abs=0.03)


def test_warm_up_drift_slows_down_and_levels_off() -> None:
    level = run_noise(Noise.DRIFT, 4000, 200, np.random.default_rng(1)).mean(axis=0)
    assert level[0] == pytest.approx(0.0, abs=0.05)
    assert 2.0 < level[40] < 3.5
    assert level[199] - level[150] == pytest.approx(0.01 * 49, abs=0.1)


@pytest.mark.parametrize("spread", Spread)
def test_spread_is_centred(spread: Spread) -> None:
    drawn = process_spread(spread, (100_000,), np.random.default_rng(2))
    sd = {Spread.NONE: 0, Spread.TAU_015: 0.15, Spread.TAU_03: 0.3, Spread.LOTTERY: 0.8 * (0.3 * 0.7) ** 0.5}[spread]
    assert drawn.mean() == pytest.approx(0.0, abs=0.01)
    assert drawn.std() == pytest.approx(sd, rel=0.02)
    if spread is Spread.LOTTERY:
        assert sorted(set(drawn.round(6))) == [-0.24, 0.56]


def test_pairs_in_abba_blocks_cancel_a_linear_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    def ramp(noise: Noise, rows: int, runs: int, rng: np.random.Generator) -> FloatArray:
        return np.tile(np.arange(runs, dtype=np.float64), (rows, 1))

    monkeypatch.setattr("harness.stats.simulate.run_noise", ramp)
    d = paired_noise(Noise.DRIFT, 500, 6, np.random.default_rng(0))
    assert set(np.unique(d)) == {-1.0, 1.0}
    assert (d.reshape(500, 3, 2).sum(axis=2) == 0).all()
    # a fair coin per block says which arm runs first
    assert d.reshape(500, 3, 2)[..., 0].mean() == pytest.approx(0.0, abs=0.1)


def test_an_effect_moves_estimates_and_nothing_else() -> None:
    sequences, _ = at_300_s(Noise.GAUSSIAN_02)
    assert rule_rates(sequences, 0.0, DEFAULT).no_win == 100.0
    shifted = Sequences(
        sequences.x + log_percent(2.0), sequences.se, sequences.pairs, sequences.p_max, sequences.process_s
    )
    assert rule_rates(shifted, 0.0, DEFAULT) == rule_rates(sequences, 2.0, DEFAULT)


def test_sequences_follow_the_plan_of_the_rule() -> None:
    sequences, _ = at_300_s(Noise.GAUSSIAN_2)
    assert sequences.x.shape == (REPLICATES, 4)
    assert np.isfinite(sequences.x).all()
    assert set(np.unique(sequences.pairs)) <= set(range(MIN_PAIRS, 15, 2))
    assert (sequences.process_s == 40 + 4 * sequences.pairs).all()
    assert (sequences.p_max == 300 // sequences.process_s).all()
