"""Rotation and launch counts as properties, the sets, the wall clock and the controls that watch it."""

import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.measure import clock
from harness.measure.arms import Arm
from harness.measure.clock import (
    COLD_FACTOR,
    MAX_COPIES_BYTES,
    MAX_HOLD_US,
    MAX_SETS,
    ArmSets,
    CudaClock,
    Hold,
    Rotation,
    WallClock,
    launches_for,
    plan_rotation,
    sets_in_place,
    tampered,
)
from harness.measure.controls import copy_time_us, read_controls
from harness.measure.rank_clock import RankCudaClock
from harness.op import Args, Device
from harness.schema.vocabulary import Cache, Contract, Kind, Method, Role
from tests.rig import CPU

H200 = Device(type="cuda", name="H200", capability=(9, 0), sm_count=132, l2_bytes=60 << 20, memory_bytes=141 << 30)
devices = st.builds(
    lambda kind, l2, memory: replace(H200, type=kind, l2_bytes=l2, memory_bytes=memory),
    st.sampled_from(["cuda", "cpu"]),
    st.integers(1 << 18, 1 << 28),
    st.integers(1 << 31, 1 << 38),
)


@given(set_bytes=st.integers(1, 1 << 36), device=devices)
def test_rotation_is_cold_and_affordable_or_says_warm(set_bytes: int, device: Device) -> None:
    rotation = plan_rotation(set_bytes, device)
    assert rotation.bytes == rotation.sets * set_bytes
    if rotation.cache is Cache.WARM:
        assert rotation.sets == 1
        assert set_bytes < COLD_FACTOR * device.l2_bytes
        return
    assert rotation.bytes >= COLD_FACTOR * device.l2_bytes
    assert 1 <= rotation.sets <= MAX_SETS[device.type]
    if rotation.sets > 1:
        assert rotation.bytes <= min(MAX_COPIES_BYTES[device.type], device.memory_bytes // 3)
        assert (rotation.sets - 1) * set_bytes >= COLD_FACTOR * device.l2_bytes, "one more than enough"


@pytest.mark.parametrize(
    ("set_bytes", "sets", "cache"),
    [
        (1 << 20, 301, Cache.COLD),
        (100 << 20, 4, Cache.COLD),
        (299 << 20, 3, Cache.COLD),
        (300 << 20, 1, Cache.COLD),
        (4 << 30, 1, Cache.COLD),
        (36 << 10, 1, Cache.WARM),
    ],
)
def test_rotations_of_an_h200(set_bytes: int, sets: int, cache: Cache) -> None:
    rotation = plan_rotation(set_bytes, H200)
    assert (rotation.sets, rotation.cache) == (sets, cache)


def test_rehearsal_of_a_tiny_case_is_warm_rather_than_long() -> None:
    """A GPU queues 2,000 launches in one graph; a CPU pays each of them, in every sample of every arm."""
    laptop = replace(H200, type="cpu", l2_bytes=2 << 20)
    assert plan_rotation(21 << 10, laptop) == Rotation(489, 21 << 10, Cache.COLD)
    assert plan_rotation(5 << 10, laptop) == Rotation(1, 5 << 10, Cache.WARM)
    assert plan_rotation(5 << 10, replace(laptop, type="cuda")) == Rotation(2049, 5 << 10, Cache.COLD)


@given(call_us=st.floats(1e-3, 1e7), sets=st.integers(1, MAX_SETS["cuda"]))
def test_launches_fill_a_sample_with_whole_rotations(call_us: float, sets: int) -> None:
    launches = launches_for(call_us, sets)
    assert launches % sets == 0
    assert launches >= sets
    assert launches * call_us >= clock.MIN_SAMPLE_US * (1 - 1e-9)
    assert launches >= min(clock.MIN_LAUNCHES, clock.LONG_SAMPLE_US / call_us)
    smaller = launches - sets
    assert smaller == 0 or smaller * call_us < clock.MIN_SAMPLE_US or smaller < clock.MIN_LAUNCHES


def args() -> Args:
    return {"x": torch.arange(12.0).view(3, 4), "weight": torch.ones(4), "eps": 1e-6}


def test_distinct_bytes_are_counted_not_assumed() -> None:
    sets = ArmSets(args(), 3, ())
    assert sets.distinct_bytes() == 3 * (48 + 16)
    sets.sets[2] = sets.sets[1]
    assert sets.distinct_bytes() == 2 * (48 + 16)
    assert {s["eps"] for s in sets.sets} == {1e-6}


@pytest.mark.defence("restore_inputs")
def test_mutated_arguments_come_back_in_every_set() -> None:
    sets = ArmSets(args(), 3, ("x",))
    for one in sets.sets:
        one["x"].fill_(-1)
    sets.restore()
    assert all(torch.equal(one["x"], args()["x"]) for one in sets.sets)


def test_load_changes_the_first_set_and_what_restore_writes() -> None:
    sets = ArmSets(args(), 2, ("x",))
    other = {"x": torch.full((3, 4), 5.0), "weight": torch.full((4,), 2.0), "eps": 1e-6}
    sets.load(other)
    assert torch.equal(sets.sets[0]["weight"], other["weight"])
    assert torch.equal(sets.sets[1]["weight"], torch.ones(4))
    for one in sets.sets:
        one["x"].zero_()
    sets.restore()
    assert all(torch.equal(one["x"], other["x"]) for one in sets.sets)


def arm(call: object) -> Arm:
    return Arm("test", Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, call, "function")  # type: ignore[arg-type]


def test_only_an_arm_that_writes_to_its_inputs_goes_through_a_set_for_each_launch() -> None:
    sets = ArmSets(args(), 2, ("x",), in_place=5)
    reads = arm(lambda x, weight, eps: x)
    assert len(sets.prepared(reads)) == 2
    assert len(sets.prepared(replace(reads, mutates=("x",)))) == 5
    assert len({one["x"].data_ptr() for one in sets.prepared(replace(reads, mutates=("x",)))}) == 5


@pytest.mark.parametrize(
    ("sets", "set_bytes", "launches", "expected"),
    [(3, 1 << 20, 20, 20), (1, 10 << 20, 1, 1), (30, 1 << 20, 20, 30), (2, 1 << 30, 20, 16), (1, 64 << 30, 20, 1)],
)
def test_sets_in_place_are_as_many_as_launches_where_they_fit(
    sets: int, set_bytes: int, launches: int, expected: int
) -> None:
    assert sets_in_place(Rotation(sets, set_bytes, Cache.COLD), launches, H200) == expected


def test_wall_clock_reads_the_time_per_call() -> None:
    def sleeps(milliseconds: float) -> tuple[()]:
        time.sleep(milliseconds / 1e3)
        return ()

    wall = WallClock()
    assert wall.method is Method.WALL
    timed = wall.ready(arm(sleeps), [{"milliseconds": 2.0}, {"milliseconds": 4.0}], 4)
    assert 3_000 <= min(timed.sample_us() for _ in range(5)) < 6_000
    assert 1_000 <= wall.estimate_us(lambda: time.sleep(1e-3)) < 5_000


def test_wall_clock_takes_the_sets_in_turn_and_keeps_one_output_each() -> None:
    seen: list[int] = []

    def notes(i: int) -> torch.Tensor:
        seen.append(i)
        return torch.tensor([i])

    timed = WallClock().ready(arm(notes), [{"i": 0}, {"i": 1}, {"i": 2}], 6)
    timed.sample_us()
    assert seen == [0, 1, 2, 0, 1, 2]
    timed.replay()
    assert [int(outputs[0]) for outputs in timed.outputs] == [0, 1, 2]


def test_nothing_is_tampered_with_here() -> None:
    assert tampered() is None


@pytest.mark.parametrize(
    "owner", ["torch.cuda.Event.elapsed_time", "torch.cuda.synchronize", "torch.cuda.CUDAGraph.replay"]
)
@pytest.mark.defence("tampered")
def test_replaced_timing_functions_are_named(owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, lambda *args: 1e-9)
    assert (clock.tampered() or "").endswith(owner.rpartition(".")[2])


@pytest.mark.defence("noop_control")
def test_a_clock_with_time_of_its_own_in_the_window_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a flush of the cache inside the timed window: every launch reads 20 µs more."""
    ready = WallClock.ready

    def flushing(self: WallClock, of: Arm, sets: list[Args], launches: int) -> object:
        timed = ready(self, of, sets, launches)
        return replace(timed, sample_us=lambda: timed.sample_us() + 20.0)

    monkeypatch.setattr(WallClock, "ready", flushing)
    monkeypatch.setattr("harness.measure.controls._CEILING_BYTES_CPU", 1 << 20)
    controls = read_controls(WallClock(), CPU)
    assert not controls.passed
    assert controls.noop_us > 20
    assert "a candidate that does nothing reads 2" in controls.reason


def test_the_clock_passes_its_own_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.measure.controls._CEILING_BYTES_CPU", 1 << 20)
    controls = read_controls(WallClock(), CPU)
    assert controls.passed, controls.reason
    assert 0 < controls.noop_us < 5
    assert controls.copy_bytes_per_us > 10


def test_copy_time_grows_with_its_bytes() -> None:
    device = torch.device("cpu")
    small, large = (copy_time_us(WallClock(), size, 1, device) for size in (1 << 16, 1 << 24))
    assert large > 4 * small


class _Stream:
    """A device that works off its queue in order, and a host whose time passes as `enqueue` says; all in µs."""

    def __init__(self, host_us: list[float], work_us: float) -> None:
        self.host_us = host_us
        self.work_us = work_us
        self.now = self.free = 0.0
        self.at: dict[object, float] = {}
        self.queued = 0

    def sleep(self, cycles: int) -> None:
        self.free = max(self.free, self.now) + cycles / clock._BLOCKER_CYCLES_PER_US

    def record(self, event: object) -> None:
        self.at[event] = max(self.free, self.now)

    def query(self, event: object) -> bool:
        return self.now >= self.at[event]

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def enqueue(self) -> None:
        self.now += self.host_us[min(self.queued, len(self.host_us) - 1)]
        self.queued += 1
        self.free = max(self.free, self.now) + self.work_us

    def between(self, monkeypatch: pytest.MonkeyPatch, hold: Hold, *, again: bool = True) -> float:
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(clock, "_record", self.record)
        monkeypatch.setattr(clock, "_query", self.query)
        monkeypatch.setattr(clock, "_synchronize", self.synchronize)
        monkeypatch.setattr(clock, "_elapsed_ms", lambda start, stop: (self.at[stop] - self.at[start]) / 1e3)
        timer = object.__new__(CudaClock)
        timer.start, timer.stop = object(), object()  # type: ignore[assignment]
        timer.samples_again = again
        return timer.between(self.enqueue, hold)


@pytest.mark.defence("clock_held")
@pytest.mark.parametrize(("host_us", "queued", "kept"), [(10.0, 1, 40.0), (100.0, 3, 160.0), (3000.0, 8, 5120.0)])
def test_no_sample_counts_the_host(monkeypatch: pytest.MonkeyPatch, host_us: float, queued: int, kept: float) -> None:
    """A host slower than when the blocking kernel was sized made one arm's samples up to 17 % long, others not."""
    stream, hold = _Stream([host_us], work_us=500.0), Hold(40.0)
    assert stream.between(monkeypatch, hold) == pytest.approx(500.0)
    assert (stream.queued, hold.us) == (queued, kept)


@pytest.mark.defence("clock_held")
def test_one_late_sample_is_taken_again_and_the_longer_hold_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, hold = _Stream([10.0, 70.0, 10.0], work_us=500.0), Hold(40.0)
    assert [stream.between(monkeypatch, hold) for _ in range(3)] == pytest.approx([500.0] * 3)
    assert (stream.queued, hold.us) == (4, 80.0)


def test_what_waits_for_the_device_itself_is_timed_with_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, hold = _Stream([1e6], work_us=500.0), Hold(40.0)
    assert stream.between(monkeypatch, hold) > 500.0
    assert MAX_HOLD_US <= hold.us < 2 * MAX_HOLD_US


def test_a_rank_does_not_sample_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, hold = _Stream([100.0], work_us=500.0), Hold(40.0)
    assert stream.between(monkeypatch, hold, again=False) == pytest.approx(560.0)
    assert (stream.queued, hold.us) == (1, 40.0)
    assert RankCudaClock.samples_again is False
