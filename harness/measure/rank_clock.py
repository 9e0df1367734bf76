"""The clock of several ranks: `harness.measure.clock` with a barrier before each train and one time for all ranks.

Before a train all ranks meet on the device, in the same stream and graph, outside what is timed. Every rank reads its
entry and its exit; the readings are gathered on one scale and become one time (`harness.measure.train`). On a CPU that
scale is CLOCK_MONOTONIC, which processes of a host share. On a GPU the readings are of `%globaltimer`, written by a
kernel of one thread at either end; they are put on the host's scale by reading that timer between two looks at the
host's clock, the closest of many, before each train (the timers drift by some ppm).

See `docs/ranks.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns as _now_ns

import torch

from harness.measure.arms import Arm
from harness.measure.clock import Clock, CudaClock, EventClock, GraphClock, Timed, WallClock, clock_for, keep_methods
from harness.measure.ranks import Team
from harness.measure.train import Span, Train, train_of
from harness.op import Args, Device

MIN_TRAIN_US = 2_000.0
"""Least length of a train on GPUs: ranks leave the meeting, and stamps follow launches, within a µs or two."""
_OFFSET_TRIES = 20


class DeviceTimer:
    """The GPU's `%globaltimer`, read in the stream, and where it lies on the host's clock."""

    def __init__(self) -> None:
        from harness.measure.globaltimer import stamp

        self._write = stamp
        self._stamps = torch.zeros(3, dtype=torch.int64, device="cuda")
        for slot in range(3):  # compiled, for each alignment, before anything is captured
            self.stamp(slot)
        torch.cuda.synchronize()

    def stamp(self, slot: int) -> None:
        """Queue a reading into slot 0 (entry), 1 (exit) or 2 (calibration)."""
        self._write[(1,)](self._stamps[slot:])

    def span(self) -> Span:
        """Entry and exit on the host's clock; the readings must be there."""
        entry, stop, _ = self._stamps.tolist()
        offset, uncertainty = self._offset_ns()
        return Span(entry - offset, stop - offset, uncertainty)

    def _offset_ns(self) -> tuple[int, int]:
        """How far the timer is ahead of the host's clock, and how far off that may be."""
        found: list[tuple[int, int]] = []
        for _ in range(_OFFSET_TRIES):
            before = _now_ns()
            self.stamp(2)
            torch.cuda.synchronize()
            after = _now_ns()
            found.append(((after - before + 1) // 2, int(self._stamps[2].item()) - (before + after) // 2))
        uncertainty, offset = min(found)
        return offset, uncertainty


class RankWallClock(WallClock):
    """CPU: entry and exit by `perf_counter_ns`."""

    def __init__(self, team: Team) -> None:
        self.team = team

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """The arm over its argument sets; all ranks must sample it together."""
        timed = super().ready(arm, sets, launches)
        call = arm.call

        def take() -> Span:
            count = len(sets)
            self.team.meet()
            entry = _now_ns()
            for launch in range(launches):
                call(**sets[launch % count])
            return Span(entry, _now_ns())

        return _together(self.team, timed, take)


class RankCudaClock(CudaClock):
    """What the two GPU clocks of several ranks share: the meeting, the stamps, and one time for all."""

    min_sample_us = MIN_TRAIN_US
    samples_again = False
    """Others would wait in the meeting for nobody; and the stamps, behind it, know nothing of this host's launch."""

    def __init__(self, team: Team, timer: DeviceTimer) -> None:
        super().__init__()
        self.team = team
        self.timer = timer

    def head(self) -> None:
        """See `GraphClock.head`."""
        self.team.meet()
        self.timer.stamp(0)

    def tail(self) -> None:
        """See `GraphClock.tail`."""
        self.timer.stamp(1)

    def together(self, timed: Timed) -> Timed:
        """`timed`, sampled by all ranks at once and timed by their stamps."""

        def take() -> Span:
            timed.sample_us()
            return self.timer.span()

        return _together(self.team, timed, take)


class RankGraphClock(RankCudaClock, GraphClock):
    """GPU: meeting, entry, launches and exit in one CUDA graph."""

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """Capture; all ranks must sample it together."""
        return self.together(super().ready(arm, sets, launches))


class RankEventClock(RankCudaClock, EventClock):
    """GPU, where some arm cannot be captured: the same around eager launches behind a blocking kernel."""

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """The arm over its argument sets; all ranks must sample it together."""
        return self.together(super().ready(arm, sets, launches))


def _together(team: Team, timed: Timed, take: Callable[[], Span]) -> Timed:
    """`timed` with samples that all ranks take at once and agree on."""
    trains: list[Train] = []

    def sample() -> float:
        trains[:] = [train_of(team.gather(take(), f"train of {timed.arm.id}"))]
        return trains[0].ns / 1e3 / timed.launches

    return Timed(timed.arm, timed.launches, sample, timed.outputs, timed.replay, timed.sets, trains)


def team_clock(device: Device, team: Team, *, capturable: bool) -> Clock:
    """The clock of one comparison of a team: of one rank, the clock it always was."""
    if team.ranks == 1:
        return clock_for(device, capturable=capturable)
    if device.type == "cpu":
        return RankWallClock(team)
    timer = DeviceTimer()
    return RankGraphClock(team, timer) if capturable else RankEventClock(team, timer)


keep_methods(sys.modules[__name__], DeviceTimer, RankWallClock, RankCudaClock, RankGraphClock, RankEventClock)
