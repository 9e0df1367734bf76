"""The clock: device time per call with launch gaps hidden, over inputs that are cold in L2.

A sample is a queue of launches over rotating sets of inputs and outputs, at least 5 x L2 of distinct bytes (then it
is `cold`; otherwise it says `warm`). On a GPU the launches are captured into one CUDA graph and replayed between two
events behind a blocking kernel, so that neither Python nor launch latency is timed; a sample whose blocking kernel
ended before the host had queued everything is thrown away. Where some arm cannot be captured,
every arm of that comparison is timed by events around a held-back queue of eager launches; the method is recorded and
never mixed. On a CPU it is the wall clock.

The timers are bound at import, before any candidate is loaded: a candidate that patches `time` or `torch.cuda.Event`
changes nothing here, and `tampered` says that it tried.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns as _perf_counter_ns
from types import ModuleType

import torch
from torch import Tensor

from harness.measure.arms import Arm
from harness.measure.gate import copied_args, storage_bytes, tensors_of
from harness.measure.train import Train
from harness.op import Args, Device
from harness.schema.vocabulary import Cache, Method

_elapsed_ms = torch.cuda.Event.elapsed_time
_record = torch.cuda.Event.record
_query = torch.cuda.Event.query
_synchronize = torch.cuda.synchronize
_THIS = sys.modules[__name__]
_ORIGINALS = (
    (_THIS, "_perf_counter_ns", time.perf_counter_ns),
    (_THIS, "_elapsed_ms", torch.cuda.Event.elapsed_time),
    (_THIS, "_record", torch.cuda.Event.record),
    (_THIS, "_query", torch.cuda.Event.query),
    (_THIS, "_synchronize", torch.cuda.synchronize),
    (time, "perf_counter_ns", time.perf_counter_ns),
    (time, "perf_counter", time.perf_counter),
    (torch.cuda.Event, "elapsed_time", torch.cuda.Event.elapsed_time),
    (torch.cuda.Event, "record", torch.cuda.Event.record),
    (torch.cuda.Event, "query", torch.cuda.Event.query),
    (torch.cuda, "synchronize", torch.cuda.synchronize),
    (torch.cuda.CUDAGraph, "replay", torch.cuda.CUDAGraph.replay),
)

MIN_SAMPLE_US = 500.0
MIN_LAUNCHES = 20
LONG_SAMPLE_US = 5_000.0
"""A sample of launches this long in total needs no more of them: slow arms stop short of MIN_LAUNCHES."""
COLD_FACTOR = 5
MAX_SETS = {"cuda": 8_192, "cpu": 512}
"""Tiny cases would need more distinct sets than this to be cold; they are measured warm and say so."""
MAX_COPIES_BYTES = {"cuda": 16 << 30, "cpu": 1 << 30}
_FENCED_REPLAYS = 5
_BLOCKER_CYCLES_PER_US = 2_000
"""Above any SM clock in MHz: the blocking kernel lasts at least as long as asked."""
MAX_HOLD_US = 50_000.0
"""What cannot be queued behind a blocking kernel of this length waits for the device itself, and is timed so."""


def tampered() -> str | None:
    """Which timing function a candidate replaced, or None."""
    own = ((owner, name, original) for owner, functions in _OWN for name, original in functions.items())
    for owner, name, original in (*_ORIGINALS, *own):
        if getattr(owner, name) is not original:
            return f"{getattr(owner, '__name__', owner)}.{name}"
    return None


@dataclass(frozen=True)
class Rotation:
    """How many distinct sets of inputs and outputs one sample goes through."""

    sets: int
    set_bytes: int
    """Bytes of one set: inputs plus outputs."""
    cache: Cache

    @property
    def bytes(self) -> int:
        """Distinct bytes touched by one sample."""
        return self.sets * self.set_bytes


def plan_rotation(set_bytes: int, device: Device) -> Rotation:
    """Enough sets for 5 x L2 of distinct bytes, or one set and `warm` when that would take too many.

    One set is enough where it alone is 5 x L2. Limits: MAX_SETS, MAX_COPIES_BYTES and a third of the memory.
    """
    sets = math.ceil(COLD_FACTOR * device.l2_bytes / set_bytes)
    if sets > 1:
        sets += 1
    if sets > MAX_SETS[device.type] or (sets > 1 and sets * set_bytes > _copies_bytes(device)):
        return Rotation(1, set_bytes, Cache.WARM)
    return Rotation(sets, set_bytes, Cache.COLD)


def sets_in_place(rotation: Rotation, launches: int, device: Device) -> int:
    """Sets of an arm that writes to its inputs: one for each launch, as far as they fit beside those that rotate."""
    return max(rotation.sets, min(launches, _copies_bytes(device) // rotation.set_bytes))


def _copies_bytes(device: Device) -> int:
    return min(MAX_COPIES_BYTES[device.type], device.memory_bytes // 3)


def launches_for(call_us: float, sets: int, min_sample_us: float = MIN_SAMPLE_US) -> int:
    """Launches per sample: >= 500 µs, >= 20 unless they are long, every set equally often."""
    wanted = max(min_sample_us / call_us, min(MIN_LAUNCHES, LONG_SAMPLE_US / call_us), 1.0)
    return sets * max(1, math.ceil(wanted / sets))


class ArmSets:
    """The rotating argument sets of one comparison; arms that leave their inputs alone share the tensors.

    `mutated` names the arguments that some arm writes to: they are kept apart in a pristine copy and written back
    into every set before every sample of every arm, outside the timed part. Such an arm goes through `in_place` sets,
    one for each launch; the others through `sets`, since each keeps outputs of its own for every set it goes through.
    """

    def __init__(self, args: Args, sets: int, mutated: tuple[str, ...], in_place: int = 0) -> None:
        self.sets = [args, *(copied_args(args) for _ in range(max(sets, in_place) - 1))]
        self._rotating = sets
        self._pristine = {name: args[name].clone() for name in mutated if name in tensors_of(args)}

    def prepared(self, arm: Arm) -> list[Args]:
        """Per set that the arm goes through, the arguments its callable takes."""
        return [arm.prepared(args) for args in (self.sets if arm.mutates else self.sets[: self._rotating])]

    def distinct_bytes(self) -> int:
        """Bytes of input storage that no two sets share: counted, not assumed."""
        return storage_bytes(tensor for args in self.sets for tensor in tensors_of(args).values())

    def load(self, args: Args) -> None:
        """Write other values (drawn like the first set) into the first set, mutated arguments into every set."""
        for name, tensor in tensors_of(args).items():
            self.sets[0][name].untyped_storage().copy_(tensor.untyped_storage())
        for name, pristine in self._pristine.items():
            pristine.copy_(args[name])
        self.restore()

    def restore(self) -> None:
        """Write the pristine values of mutated arguments back into every set."""
        for name, pristine in self._pristine.items():
            for args in self.sets:
                args[name].copy_(pristine)


@dataclass
class Timed:
    """One arm ready to be sampled."""

    arm: Arm
    launches: int
    sample_us: Callable[[], float]
    """Time one sample and return µs per call."""
    outputs: list[tuple[Tensor, ...]]
    """Outputs of the last rotation, one per set; rewritten by each sample where the method keeps their memory."""
    replay: Callable[[], None]
    """Run the timed launches once, untimed: for the check on the replayed path."""
    sets: list[Args]
    """The prepared arguments of each set: a captured launch knows their addresses and does not keep their memory."""
    trains: list[Train] = field(default_factory=list)
    """The last sample as the ranks saw it; empty for one rank."""


def wall_us(call: Callable[[], object], synchronize: Callable[[], None], repeats: int) -> float:
    """Launch-inclusive wall time per call in µs: what a model without CUDA graphs pays."""
    synchronize()
    start = _perf_counter_ns()
    for _ in range(repeats):
        call()
    synchronize()
    return (_perf_counter_ns() - start) / 1e3 / repeats


class WallClock:
    """CPU: `perf_counter_ns` around the launches."""

    method = Method.WALL
    min_sample_us = MIN_SAMPLE_US

    def synchronize(self) -> None:
        """Nothing is asynchronous here."""

    def estimate_us(self, call: Callable[[], object]) -> float:
        """A rough time per call, to size samples."""
        call()
        return max(min(wall_us(call, self.synchronize, 3) for _ in range(3)), 1e-3)

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """The arm over its argument sets."""
        call = arm.call
        outputs: list[tuple[Tensor, ...]] = []

        def replay() -> None:
            outputs[:] = [arm.outputs(args) for args in sets]

        def sample() -> float:
            count = len(sets)
            start = _perf_counter_ns()
            for launch in range(launches):
                call(**sets[launch % count])
            return (_perf_counter_ns() - start) / 1e3 / launches

        return Timed(arm, launches, sample, outputs, replay, sets)


@dataclass
class Hold:
    """How long a blocking kernel holds the stream for one arm's samples; it only grows."""

    us: float


class CudaClock:
    """What the clocks of a GPU share."""

    min_sample_us = MIN_SAMPLE_US
    samples_again = True
    """Whether a sample may be taken again by this process alone."""

    def __init__(self) -> None:
        self.start = torch.cuda.Event(enable_timing=True)
        self.stop = torch.cuda.Event(enable_timing=True)

    def head(self) -> None:
        """Queued before the launches of a sample; nothing for one rank."""

    def tail(self) -> None:
        """Queued behind them."""

    def synchronize(self) -> None:
        """Wait for the device; raises the sticky error of an earlier launch."""
        _synchronize()

    def estimate_us(self, call: Callable[[], object]) -> float:
        """A rough time per call, to size samples: events around five calls held behind a blocking kernel."""
        call()
        self.synchronize()
        return max(self.between(lambda: [call() for _ in range(5)], Hold(2_000.0)) / 5, 0.2)

    def between(self, enqueue: Callable[[], object], hold: Hold) -> float:
        """Device µs between two events around what `enqueue` queues while a blocking kernel holds the stream.

        Where that kernel has ended by the time all is queued, the device may have waited for the host inside the timed
        part: it is queued again behind a kernel twice as long, up to MAX_HOLD_US. An arm that writes to its inputs then
        finds them written to; a sample's values are judged by nobody.
        """
        while True:
            torch.cuda._sleep(int(hold.us * _BLOCKER_CYCLES_PER_US))
            _record(self.start)
            enqueue()
            _record(self.stop)
            held = not _query(self.start)  # type: ignore[no-untyped-call]
            _synchronize()
            if held or not self.samples_again or hold.us >= MAX_HOLD_US:
                return float(_elapsed_ms(self.start, self.stop)) * 1e3
            hold.us *= 2


class GraphClock(CudaClock):
    """CUDA graph of all launches, replayed between two events."""

    method = Method.CUDA_GRAPH

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """Capture; raises RuntimeError when something in the call cannot be captured."""
        outputs: list[tuple[Tensor, ...]] = [()] * len(sets)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for args in sets[:2]:
                arm.outputs(args)
        torch.cuda.current_stream().wait_stream(stream)
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.head()
                for launch in range(launches):
                    # Every set keeps its own outputs alive, so that writes rotate like reads.
                    outputs[launch % len(sets)] = arm.outputs(sets[launch % len(sets)])
                self.tail()
        graph.replay()
        self.synchronize()
        hold = self._hold(graph)

        def sample() -> float:
            return self.between(graph.replay, hold) / launches

        return Timed(arm, launches, sample, outputs, graph.replay, sets)

    def fenced_us(self, arm: Arm, sets: list[Args], launches: int) -> float:
        """µs per call when another kernel stands between any two calls, less that kernel's own time.

        A kernel that lets its successor start early (programmatic dependent launch) hides part of itself in a train of
        its own launches; behind a kernel that waits for its end, as most of a model's do, it hides nothing.
        """
        fence = torch.zeros(1, device="cuda")
        outputs: list[tuple[Tensor, ...]] = [()] * len(sets)

        def call(launch: int) -> None:
            outputs[launch % len(sets)] = arm.outputs(sets[launch % len(sets)])
            fence.add_(1)

        return self._train_us(call, launches) - self._train_us(lambda launch: fence.add_(1), launches)

    def _train_us(self, call: Callable[[int], object], launches: int) -> float:
        """Best of a few replays of a graph of these launches, µs per launch."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for launch in range(launches):
                call(launch)
        hold = self._hold(graph)
        return min(self.between(graph.replay, hold) for _ in range(_FENCED_REPLAYS)) / launches

    def _hold(self, graph: torch.cuda.CUDAGraph) -> Hold:
        """Twice what the host takes to launch the graph, to begin with."""
        start = _perf_counter_ns()
        graph.replay()
        host_us = (_perf_counter_ns() - start) / 1e3
        self.synchronize()
        return Hold(2 * host_us + 20)


class EventClock(CudaClock):
    """Events around eager launches queued behind a blocking kernel; for comparisons where capture fails."""

    method = Method.EVENTS

    def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
        """The arm over its argument sets; the blocker lasts twice the host time of enqueueing them."""
        call = arm.call
        outputs: list[tuple[Tensor, ...]] = []

        def enqueue() -> None:
            self.head()
            for launch in range(launches):
                call(**sets[launch % len(sets)])
            self.tail()

        def replay() -> None:
            outputs[:] = [arm.outputs(args) for args in sets]

        hold = Hold(2 * wall_us(enqueue, lambda: None, 1) + 50)
        self.synchronize()

        def sample() -> float:
            return self.between(enqueue, hold) / launches

        return Timed(arm, launches, sample, outputs, replay, sets)


Clock = WallClock | GraphClock | EventClock


def clock_for(device: Device, *, capturable: bool) -> Clock:
    """The clock of one comparison: one method for all its arms."""
    if device.type == "cpu":
        return WallClock()
    return GraphClock() if capturable else EventClock()


_OWN: list[tuple[type | ModuleType, dict[str, object]]] = []
"""The clocks' own methods, as they were before any candidate was imported."""


def keep_methods(*owners: type | ModuleType) -> None:
    """From now on `tampered` says when a function of these classes or modules was replaced."""
    _OWN.extend((owner, {name: value for name, value in vars(owner).items() if callable(value)}) for owner in owners)


keep_methods(WallClock, CudaClock, GraphClock, EventClock)
