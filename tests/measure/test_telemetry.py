"""What voids a block and what is only recorded, with probes that say what the test wants."""

import time
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

import pytest

from harness.measure import telemetry
from harness.measure.telemetry import CpuProbe, Poll, Probe, Watcher


class Scripted(Probe):
    """Gives the polls of a list, the last for ever."""

    def __init__(self, polls: Iterable[dict[str, object]]) -> None:
        self._polls = list(polls)

    def poll(self, worker_pid: int) -> Poll:
        """The next one, now."""
        fields = self._polls.pop(0) if len(self._polls) > 1 else self._polls[0]
        return Poll(at_s=monotonic(), **fields)  # type: ignore[arg-type]


def void(*polls: dict[str, object]) -> str:
    """What a watcher says of a block that lasts from before the first poll until now."""
    start = monotonic()
    watcher = Watcher(Scripted(polls), 1)
    watcher.adopt_processes()
    return watcher.void(start, monotonic())


@pytest.mark.defence("watcher_void")
@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (0x8, "hardware slowdown"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
    ],
)
def test_throttle_voids_a_block(bit: int, reason: str) -> None:
    assert void({}, {"reasons": bit | 0x4, "sm_clock_mhz": 1168.0}) == reason


@pytest.mark.parametrize("bit", [0x1, 0x2, 0x4, 0x10, 0x100])
def test_idle_application_clocks_power_cap_and_sync_boost_do_not(bit: int) -> None:
    assert void({}, {"reasons": bit}) == ""


@pytest.mark.defence("watcher_void")
def test_foreign_process_on_the_gpu() -> None:
    own = {"pids": frozenset({100})}
    assert void(own, own) == ""
    assert void(own, {"pids": frozenset({100, 7})}) == "foreign process 7 on the GPU"


@pytest.mark.defence("watcher_void")
def test_other_processes_on_the_cpu() -> None:
    assert void({}, {"foreign_cpu_share": 0.49}) == ""
    assert void({}, {"foreign_cpu_share": 0.62}) == "other processes kept 62% of the cores busy"


def test_polls_outside_the_span_do_not_count() -> None:
    watcher = Watcher(Scripted([{"reasons": 0x40}, {}]), 1)
    watcher.adopt_processes()
    time.sleep(0.01)
    start = monotonic()
    assert watcher.void(start, monotonic()) == ""


def test_record_summarises_the_span() -> None:
    polls: list[dict[str, object]] = [
        {"sm_clock_mhz": 1980.0, "power_w": 300.0, "temperature_c": 50.0, "pids": frozenset({1})},
        {"sm_clock_mhz": 1168.0, "power_w": 700.0, "temperature_c": 88.0, "pids": frozenset({1, 9}), "reasons": 0x24},
        {"sm_clock_mhz": 1900.0, "power_w": 500.0, "temperature_c": 60.0, "pids": frozenset({1}), "reasons": 0x4},
    ]
    start = monotonic()
    watcher = Watcher(Scripted(polls), 1)
    watcher.adopt_processes()
    watcher.void(start, monotonic())
    watcher.void(start, monotonic())
    record = watcher.record(start, monotonic(), 2)
    assert record.available
    assert record.polls == 3
    assert record.sm_clock_mhz_median == 1900.0
    assert record.sm_clock_mhz_min == 1168.0
    assert record.power_w_median == 500.0
    assert record.temperature_c_max == 88.0
    assert set(record.throttle_reasons) == {"software power cap", "software thermal slowdown"}
    assert record.foreign_pids == (9,)
    assert record.blocks_void == 2


def test_thread_polls_until_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "POLL_S", 0.01)
    watcher = Watcher(Scripted([{}]), 1)
    start = monotonic()
    watcher.start()
    time.sleep(0.1)
    watcher.stop()
    record = watcher.record(start, monotonic(), 0)
    assert record.polls >= 4


def test_cpu_probe_counts_what_is_not_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores for one second: 1.2 s busy, of which the worker 0.3 s and this process 0.1 s."""
    probe = CpuProbe()
    ticks = probe._ticks_per_s
    busy, own = [100.0, 101.2], {1: [5.0, 5.3], 2: [1.0, 1.1]}
    now = [1000.0, 1001.0]
    monkeypatch.setattr(telemetry, "monotonic", lambda: now[0])
    monkeypatch.setattr(telemetry.os, "getpid", lambda: 2)
    monkeypatch.setattr(probe, "_cores", 2)
    monkeypatch.setattr(probe, "_busy_s", lambda: busy[0])
    monkeypatch.setattr(probe, "_tree_s", lambda pid: own[pid][0])
    assert probe.poll(1).foreign_cpu_share == 0.0, "nothing to compare with yet"
    for series in (busy, now, *own.values()):
        series.pop(0)
    assert probe.poll(1).foreign_cpu_share == pytest.approx(0.4)
    assert ticks > 0


def test_cpu_probe_reads_this_machine() -> None:
    probe = CpuProbe()
    probe.poll(1)
    time.sleep(0.05)
    assert 0.0 <= probe.poll(1).foreign_cpu_share <= 1.0
    assert probe._tree_s(2**30) == 0.0


def test_cpu_probe_repeats_itself_between_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond after a poll one tick of 10 ms has passed: no 100 % of two cores, but what was seen before."""
    probe = CpuProbe()
    now, busy = [1000.0], [100.0]
    monkeypatch.setattr(telemetry, "monotonic", lambda: now[0])
    monkeypatch.setattr(probe, "_cores", 2)
    monkeypatch.setattr(probe, "_busy_s", lambda: busy[0])
    monkeypatch.setattr(probe, "_tree_s", lambda pid: 0.0)
    probe.poll(1)
    now[0], busy[0] = 1000.1, 100.02
    assert probe.poll(1).foreign_cpu_share == pytest.approx(0.1)
    now[0], busy[0] = 1000.101, 100.03
    assert probe.poll(1).foreign_cpu_share == pytest.approx(0.1)
    now[0], busy[0] = 1000.2, 100.12
    assert probe.poll(1).foreign_cpu_share == pytest.approx(0.5), "the tick counts in the next full look"
