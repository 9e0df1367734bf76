"""Balanced random blocks over all arms, until every interval is narrow enough or the budget is spent.

A block is one random order of the arms and its reverse; it is the statistical unit. A block that the watcher calls
void (foreign process, throttle) is measured again before anyone looks at its times, a bounded number of times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import numpy as np

from harness.measure.clock import Clock, Timed, wall_us
from harness.measure.ranks import ALONE, Team
from harness.measure.train import Train
from harness.stats.estimators import hl_interval
from harness.stats.orders import block_orders
from harness.stats.units import FloatArray, log_ratios

MIN_BLOCKS = 20
REHEARSAL_BLOCKS = 10
"""Least blocks on a CPU, whose times decide nothing."""
MAX_BLOCKS = 100
HALF_WIDTH_LOG_PCT = 0.5
"""Sampling stops once every interval against the baseline is at most this wide on either side."""
MIN_TOTAL_US = 250_000.0
"""Measured time per arm before sampling may stop."""
MAX_VOID_BLOCKS = 10
_WARM_UP_CALLS = 25
_WARM_UP_S = 0.2
_WARM_UP_LIMIT_S = 2.0
_AGREE_LOG_PCT = 1.0
"""Two consecutive baseline samples this close to each other are a warm device."""


@dataclass(frozen=True)
class Budget:
    """Limits of one comparison."""

    seconds: float
    min_blocks: int = MIN_BLOCKS
    max_blocks: int = MAX_BLOCKS


@dataclass
class Samples:
    """What one comparison measured: per block the order of arms, per arm its (out, back) times in µs."""

    orders: list[tuple[int, ...]] = field(default_factory=list)
    pairs_us: list[list[tuple[float, float]]] = field(default_factory=list)
    trains: list[list[tuple[Train, Train]]] = field(default_factory=list)
    """Per arm what the ranks saw of each pair; empty lists for one rank."""
    void: int = 0
    void_reason: str = ""
    """Set when too many blocks were void: the comparison has no result."""


def block_log_ratios(base: Sequence[tuple[float, float]], arm: Sequence[tuple[float, float]]) -> FloatArray:
    """Log-percent of base over arm, one per block; geometric mean of the way out and the way back."""
    return np.asarray(log_ratios(base, arm).mean(axis=1))


def narrow_enough(samples: Samples, baseline: int) -> bool:
    """Whether every arm's interval against the baseline has the wanted half-width. Looks at widths, never at signs."""
    for index, pairs in enumerate(samples.pairs_us):
        if index == baseline:
            continue
        interval = hl_interval(block_log_ratios(samples.pairs_us[baseline], pairs))
        if interval.upper - interval.lower > 2 * HALF_WIDTH_LOG_PCT:
            return False
    return True


def warm_up(timed: list[Timed], baseline: int, prepare: Callable[[], None], budget: Budget, team: Team = ALONE) -> None:
    """Run every arm for a while, then the baseline until two consecutive samples agree.

    The latter for _WARM_UP_LIMIT_S at most, or half of what sampling may take.
    """
    for arm in timed:
        calls, start = 0, monotonic()
        while team.lead(calls < _WARM_UP_CALLS or monotonic() - start < _WARM_UP_S / len(timed), "warming up"):
            prepare()
            arm.sample_us()
            calls += arm.launches
    start, previous = monotonic(), math.inf
    while team.lead(monotonic() - start < min(_WARM_UP_LIMIT_S, budget.seconds / 2), "warm-up"):
        prepare()
        current = timed[baseline].sample_us()
        if abs(100 * math.log(current / previous)) < _AGREE_LOG_PCT if previous < math.inf else False:
            return
        previous = current


def sample(
    timed: list[Timed],
    baseline: int,
    *,
    seed: int,
    budget: Budget,
    prepare: Callable[[], None],
    block_void: Callable[[float, float], str],
    progress: Callable[[int], None],
    team: Team = ALONE,
) -> Samples:
    """Measure blocks of all arms.

    `prepare` runs before every sample, untimed (restores mutated inputs); `block_void(start, stop)` is asked at each
    block's end, with monotonic seconds, for a reason to discard it or "". A team samples together, and rank 0's clock
    says when it ends.
    """
    samples = Samples(pairs_us=[[] for _ in timed], trains=[[] for _ in timed])
    orders = iter(block_orders(len(timed), budget.max_blocks + MAX_VOID_BLOCKS, seed))
    start = monotonic()
    while len(samples.orders) < budget.max_blocks:
        order = next(orders)
        block: list[list[float]] = [[] for _ in timed]
        trains: list[list[Train]] = [[] for _ in timed]
        block_start = monotonic()
        for index in (*order, *reversed(order)):
            prepare()
            block[index].append(timed[index].sample_us())
            trains[index] += timed[index].trains
        if reason := block_void(block_start, monotonic()):
            samples.void += 1
            if samples.void == MAX_VOID_BLOCKS:
                samples.void_reason = f"{samples.void} blocks void, the last for: {reason}"
                return samples
            continue
        samples.orders.append(order)
        for index, (out, back) in enumerate(block):
            samples.pairs_us[index].append((out, back))
            if trains[index]:
                samples.trains[index].append((trains[index][0], trains[index][1]))
        progress(len(samples.orders))
        if len(samples.orders) < budget.min_blocks:
            continue
        if team.lead(_finished(samples, timed, baseline, budget, start), "end of sampling"):
            break
    return samples


def _finished(samples: Samples, timed: list[Timed], baseline: int, budget: Budget, start: float) -> bool:
    if monotonic() - start > budget.seconds:
        return True
    shortest = min(
        sum(out + back for out, back in pairs) * arm.launches
        for pairs, arm in zip(samples.pairs_us, timed, strict=True)
    )
    return shortest >= MIN_TOTAL_US and narrow_enough(samples, baseline)


def host_time_us(clock: Clock, call: Callable[[], object]) -> float:
    """Launch-inclusive wall time per call in µs, no graph: median of five runs of 20 calls."""
    return sorted(wall_us(call, clock.synchronize, 20) for _ in range(5))[2]
