"""Wall clock over whole runs of a component, blocks of all arms in random order and its reverse.

Not events: what a candidate saves or costs in launches counts end to end. One synchronise per sample.

Ranks that run one model together meet before each sample, and its time is from the last one's entry to the last one's
exit, on the host's clock, which they share (`harness.measure.train`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns

from harness.measure.ranks import ALONE, Team
from harness.measure.train import Span, Train, rank_times, train_of
from harness.schema.measurement import RankTimes
from harness.stats.orders import block_orders

MIN_SAMPLE_S = 0.5
"""A sample is at least this long: shorter components run several times in it.

On an H200 at its power cap the clock wanders (1700 to 1830 MHz) and the first run after a synchronise is 4 % slower
than the others. There pairs of baseline and twin (40 ms a run) spread by 2.8 % (sd) with samples of 0.25 s between five
other arms, and by 0.7 % with two arms and samples of 0.47 s; 0.9 s gave 0.7 % too, at twice the time."""
WARM_UP_BLOCKS = 12
"""Most blocks of warm-up; it ends as soon as two consecutive blocks agree on the baseline."""
DISCARDED_BLOCKS = 1
"""Blocks (of two samples an arm) thrown away after the warm-up."""
AGREE = 0.01
MAX_VOID_BLOCKS = 4


@dataclass(frozen=True)
class ArmTimes:
    """One arm's times as stored."""

    ms: tuple[tuple[float, float], ...] = ()
    of_ranks: RankTimes | None = None


NO_TIMES = ArmTimes()


@dataclass
class Blocks:
    """What was kept: per block the order of arms, per arm its (out, back) times in ms per run."""

    orders: list[tuple[int, ...]] = field(default_factory=list)
    times_ms: list[list[tuple[float, float]]] = field(default_factory=list)
    void: int = 0
    void_reason: str = ""
    """Set when too many blocks were void: the process has no result."""
    warm_up_blocks: int = 0
    block_s: list[float] = field(default_factory=list)
    trains: list[list[tuple[Train, Train]]] = field(default_factory=list)
    """Per arm what the ranks saw of each pair."""

    def of(self, arm: int, repeats: int, team: Team) -> ArmTimes:
        """What was kept of an arm, as stored."""
        seen = self.trains[arm] if team.ranks > 1 else ()
        return ArmTimes(tuple(self.times_ms[arm]), rank_times(seen, repeats))


@dataclass(frozen=True)
class Sampler:
    """Times callables that each do one run."""

    runs: Sequence[Callable[[], object]]
    synchronize: Callable[[], None]
    baseline: int
    team: Team = ALONE

    def runs_per_sample(self) -> int:
        """So many runs of the baseline take `MIN_SAMPLE_S`; judged on one run after the compile."""
        return max(1, round(MIN_SAMPLE_S / (self.sample(self.baseline, 1).ns / 1e9) + 0.49))

    def sample(self, arm: int, repeats: int) -> Train:
        """`repeats` runs with one synchronise at the end; all ranks take it together and agree on it."""
        run = self.runs[arm]
        self.team.meet()
        self.synchronize()
        entry = perf_counter_ns()
        for _ in range(repeats):
            run()
        self.synchronize()
        return train_of(self.team.gather(Span(entry, perf_counter_ns()), f"sample of arm {arm}"))

    def block(self, order: tuple[int, ...], repeats: int) -> list[tuple[Train, Train]]:
        """One block: every arm on the way out and on the way back."""
        trains: list[list[Train]] = [[] for _ in self.runs]
        for arm in (*order, *reversed(order)):
            trains[arm].append(self.sample(arm, repeats))
        return [(out, back) for out, back in trains]

    def warm_up(self, orders: Sequence[tuple[int, ...]], repeats: int) -> int:
        """Blocks until two consecutive ones agree on the baseline's median within 1 %, judged on times, never on
        differences; then the discarded ones. Returns how many were run."""
        done, previous = 0, 0.0
        agree = False
        while done < WARM_UP_BLOCKS and not agree:
            median = statistics.median(train.ns for train in self.block(orders[done], repeats)[self.baseline])
            agree = bool(previous) and abs(median / previous - 1) < AGREE
            done, previous = done + 1, median
        for order in orders[done : done + DISCARDED_BLOCKS]:
            self.block(order, repeats)
        return done + DISCARDED_BLOCKS

    def measure(
        self,
        blocks: Callable[[Blocks], int],
        *,
        repeats: int,
        seed: int,
        block_void: Callable[[float, float], str],
        progress: Callable[[int, int], None],
    ) -> Blocks:
        """Warm up, then measure until `blocks` (asked after each, with what there is) says enough are kept; of a team
        rank 0's counts.

        `block_void(start, stop)`, in monotonic seconds, gives a reason to discard a block or "".
        """
        orders = block_orders(len(self.runs), 400, seed)
        kept = Blocks(times_ms=[[] for _ in self.runs], trains=[[] for _ in self.runs])
        kept.warm_up_blocks = self.warm_up(orders, repeats)
        for order in orders[kept.warm_up_blocks :]:
            wanted = self.team.lead(blocks(kept), "blocks wanted")
            progress(len(kept.orders), wanted)
            if len(kept.orders) >= wanted:
                break
            start = monotonic()
            trains = self.block(order, repeats)
            stop = monotonic()
            if reason := block_void(start, stop):
                kept.void += 1
                if kept.void == MAX_VOID_BLOCKS:
                    kept.void_reason = f"{kept.void} blocks void, the last for: {reason}"
                    break
                continue
            kept.orders.append(order)
            kept.block_s.append(stop - start)
            for arm, (out, back) in enumerate(trains):
                kept.times_ms[arm].append((out.ns / 1e6 / repeats, back.ns / 1e6 / repeats))
                kept.trains[arm].append((out, back))
        return kept
