"""Blocks cancel drift and position; a comparison of equals stays one; void blocks are bounded."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from harness.measure import sampler
from harness.measure.arms import Arm
from harness.measure.clock import Timed
from harness.measure.sampler import Budget, Samples, block_log_ratios, narrow_enough, sample, warm_up
from harness.schema.vocabulary import Contract, Kind, Role
from harness.stats.estimators import hl_interval

LAUNCHES = 200


class Machine:
    """Pretends to time arms: a true time each, and what the machine adds at every sample."""

    def __init__(self, true_us: dict[str, float], disturb: Callable[["Machine"], float]) -> None:
        self.true_us = true_us
        self.disturb = disturb
        self.samples = 0
        self.position = 0
        self.order: list[str] = []
        self.rng = np.random.default_rng(3)

    def timed(self) -> list[Timed]:
        """The arms in their order."""
        return [self._arm(name) for name in self.true_us]

    def _arm(self, name: str) -> Timed:
        def sample_us() -> float:
            self.position = self.samples % (2 * len(self.true_us))
            value = self.true_us[name] * self.disturb(self) * math.exp(self.rng.normal(0, 1e-4))
            self.samples += 1
            self.order.append(name)
            return value

        arm = Arm(name, Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, lambda: (), "function")
        return Timed(arm, LAUNCHES, sample_us, [], lambda: None, [])

    def run(self, **more: object) -> Samples:
        """Sixty blocks, or what the test says."""
        given = {
            "seed": 5,
            "budget": Budget(60.0, min_blocks=60, max_blocks=60),
            "prepare": lambda: None,
            "block_void": lambda start_s, stop_s: "",
            "progress": lambda done: None,
        } | more
        return sample(self.timed(), 0, **given)  # type: ignore[arg-type]


def effect(samples: Samples, arm: int, baseline: int = 0) -> tuple[float, float]:
    """Interval of the log-percent that the arm is faster than the baseline."""
    interval = hl_interval(block_log_ratios(samples.pairs_us[baseline], samples.pairs_us[arm]))
    return interval.lower, interval.upper


EQUALS = {"base": 100.0, "twin": 100.0, "candidate": 100.0}


@pytest.mark.defence("reversed_blocks")
def test_a_clock_that_drifts_one_percent_a_sample_makes_nobody_faster() -> None:
    """Base, then head: with the head always later it would be a percent slower than itself."""
    samples = Machine(EQUALS, lambda machine: 1.01**machine.samples).run()
    for arm in (1, 2):
        lower, upper = effect(samples, arm)
        assert -0.2 < lower <= 0 <= upper < 0.2


@pytest.mark.defence("random_orders")
def test_a_slow_first_slot_makes_nobody_slower() -> None:
    """The first sample of every block reads 4 % more: no arm has that slot more often than chance gives it."""
    samples = Machine(EQUALS, lambda machine: 1.04 if machine.position == 0 else 1.0).run()
    for arm in (1, 2):
        lower, upper = effect(samples, arm)
        assert lower < 1.0
        assert upper > -1.0
    firsts = [order[0] for order in samples.orders]
    assert all(10 <= firsts.count(arm) <= 30 for arm in range(3))


def test_a_true_difference_is_found_through_drift() -> None:
    machine = Machine({**EQUALS, "candidate": 98.0}, lambda of: 1.001**of.samples)
    lower, upper = effect(machine.run(), 2)
    assert lower < 100 * math.log(100 / 98) < upper
    assert upper - lower < 0.3


def test_every_block_is_an_order_and_its_reverse() -> None:
    machine = Machine(EQUALS, lambda of: 1.0)
    samples = machine.run(budget=Budget(60.0, min_blocks=4, max_blocks=4))
    names = list(EQUALS)
    assert len(samples.orders) == 4
    for block, order in enumerate(samples.orders):
        ran = machine.order[6 * block : 6 * block + 6]
        assert ran[:3] == [names[arm] for arm in order]
        assert ran[3:] == ran[:3][::-1]


def test_the_same_seed_gives_the_same_orders() -> None:
    def orders(seed: int) -> list[tuple[int, ...]]:
        return Machine(EQUALS, lambda of: 1.0).run(seed=seed).orders

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)


def test_void_blocks_are_thrown_away_and_bounded() -> None:
    asked: list[int] = []

    def void(start_s: float, stop_s: float) -> str:
        assert stop_s >= start_s
        asked.append(1)
        return "power brake" if len(asked) % 2 else ""

    samples = Machine(EQUALS, lambda of: 1.0).run(block_void=void)
    assert samples.void == sampler.MAX_VOID_BLOCKS
    assert samples.void_reason == "10 blocks void, the last for: power brake"
    assert len(samples.orders) == 9


def test_prepare_runs_before_every_sample_of_every_arm() -> None:
    prepared: list[int] = []
    machine = Machine(EQUALS, lambda of: 1.0)
    machine.run(budget=Budget(60.0, min_blocks=3, max_blocks=3), prepare=lambda: prepared.append(machine.samples))
    assert prepared == list(range(18))


def test_sampling_stops_when_every_interval_is_narrow_and_never_looks_at_signs() -> None:
    quiet = Machine({**EQUALS, "candidate": 60.0}, lambda of: 1.0)
    samples = quiet.run(budget=Budget(60.0, min_blocks=20, max_blocks=100))
    assert 20 <= len(samples.orders) < 100
    shortest = min(sum(out + back for out, back in pairs) * LAUNCHES for pairs in samples.pairs_us)
    assert shortest >= sampler.MIN_TOTAL_US
    noisy = Machine(EQUALS, lambda of: math.exp(of.rng.normal(0, 0.2)))
    assert len(noisy.run(budget=Budget(60.0, min_blocks=20, max_blocks=100)).orders) == 100


def test_budget_ends_it_after_the_least_blocks() -> None:
    noisy = Machine(EQUALS, lambda of: math.exp(of.rng.normal(0, 0.2)))
    assert len(noisy.run(budget=Budget(0.0, min_blocks=8, max_blocks=100)).orders) == 8


def test_narrow_enough_is_about_the_width_alone() -> None:
    base = [(100.0, 100.0)] * 20
    assert narrow_enough(Samples(pairs_us=[base, [(50.0, 50.0)] * 20]), 0)
    wild = [(100.0 * f, 100.0 * f) for f in np.exp(np.random.default_rng(0).normal(0, 0.1, 20))]
    assert not narrow_enough(Samples(pairs_us=[base, wild]), 0)


def test_warm_up_goes_on_until_the_baseline_settles() -> None:
    cooling = Machine(EQUALS, lambda of: 1 + 1 / (1 + of.samples))
    warm_up(cooling.timed(), 0, lambda: None, Budget(60.0))
    assert set(cooling.order) == set(EQUALS)
    assert cooling.order[-2:] == ["base", "base"]


def test_warm_up_of_a_restless_baseline_takes_half_the_budget_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count()
    monkeypatch.setattr(sampler, "monotonic", lambda: next(now) * 0.01)
    restless = Machine(EQUALS, lambda of: 1.0 + of.samples % 2)
    samples = []
    for seconds in (0.2, 1.0, 60.0):
        restless.order.clear()
        warm_up(restless.timed(), 0, lambda: None, Budget(seconds))
        samples.append(len(restless.order))
    assert samples[1] - samples[0] == pytest.approx(40, abs=2), "0.5 s against 0.1 s, 10 ms each"
    assert samples[2] - samples[0] == pytest.approx(190, abs=2), "2 s at most"
