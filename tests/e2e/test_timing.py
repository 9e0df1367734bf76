"""The E2E clock: balanced blocks, a warm-up judged on times, void blocks thrown away, one synchronise per sample."""

import itertools
from collections.abc import Callable

import pytest

from harness.e2e import timing
from harness.e2e.timing import MAX_VOID_BLOCKS, Blocks, Sampler
from harness.stats.orders import block_orders


class FakeTime:
    """A clock that runs advance by what they take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: round(fake.now * 1e9))
    monkeypatch.setattr(timing, "monotonic", fake)
    return fake


def taking(clock: FakeTime, seconds: Callable[[], float], log: list[str], name: str) -> Callable[[], None]:
    def run() -> None:
        log.append(name)
        clock.now += seconds()

    return run


def sampler(clock: FakeTime, log: list[str], base: Callable[[], float], other: float = 0.5) -> Sampler:
    runs = [taking(clock, base, log, "base"), taking(clock, lambda: other, log, "other")]
    return Sampler(runs, lambda: log.append("sync"), baseline=0)


def test_times_are_per_run_and_in_the_place_of_their_arm(clock: FakeTime) -> None:
    log: list[str] = []
    block = sampler(clock, log, lambda: 1.0).block((1, 0), repeats=2)
    assert [(out.ns, back.ns) for out, back in block] == [(2 * 10**9, 2 * 10**9), (10**9, 10**9)], "two runs each"
    assert [name for name in log if name != "sync"] == ["other"] * 2 + ["base"] * 4 + ["other"] * 2
    assert log.count("sync") == 8


def test_short_runs_are_repeated_until_a_sample_is_long_enough(clock: FakeTime) -> None:
    assert sampler(clock, [], lambda: 0.01).runs_per_sample() == 50
    assert sampler(clock, [], lambda: 3.0).runs_per_sample() == 1


def test_the_warm_up_ends_when_two_blocks_agree_on_the_baseline(clock: FakeTime) -> None:
    times = itertools.chain([4.0, 4.0, 2.0, 2.0, 1.0, 1.0], itertools.repeat(1.001))
    log: list[str] = []
    done = sampler(clock, log, lambda: next(times)).warm_up(block_orders(2, 20, 1), repeats=1)
    assert done == 4 + timing.DISCARDED_BLOCKS
    assert log.count("base") == 2 * done


def test_a_machine_that_never_settles_is_measured_all_the_same(clock: FakeTime) -> None:
    times = (1.0 + 0.1 * (n % 4 // 2) for n in itertools.count())
    done = sampler(clock, [], lambda: next(times)).warm_up(block_orders(2, 40, 1), repeats=1)
    assert done == timing.WARM_UP_BLOCKS + timing.DISCARDED_BLOCKS


def measured(clock: FakeTime, void: Callable[[float, float], str], blocks: int = 4) -> Blocks:
    return sampler(clock, [], lambda: 1.0).measure(
        lambda kept: blocks, repeats=1, seed=7, block_void=void, progress=lambda done, most: None
    )


def test_void_blocks_are_measured_again_and_leave_no_times(clock: FakeTime) -> None:
    reasons = iter(["heat", "", "heat", *[""] * 20])
    kept = measured(clock, lambda start, stop: next(reasons))
    assert (len(kept.orders), kept.void, kept.void_reason) == (4, 2, "")
    assert kept.times_ms == [[(1000.0, 1000.0)] * 4, [(500.0, 500.0)] * 4]


def test_too_many_void_blocks_end_the_process(clock: FakeTime) -> None:
    kept = measured(clock, lambda start, stop: "heat")
    assert kept.void == MAX_VOID_BLOCKS
    assert kept.void_reason == f"{MAX_VOID_BLOCKS} blocks void, the last for: heat"
    assert kept.orders == []
