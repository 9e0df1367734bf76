"""Clocks, power, heat and strangers on the device, watched from outside the timed process.

A thread polls every 100 ms; at each block's end the watcher says whether the block counts. A power cap is a steady
state of such parts and is recorded, not judged; heat, a power brake or a foreign process voids the block.
"""

from __future__ import annotations

import os
import statistics
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from harness.schema.measurement import TelemetryRecord

POLL_S = 0.1
_FOREIGN_CPU_SHARE = 0.5
"""Share of all cores that other processes may keep busy during a block on a CPU."""
_SHORTEST_LOOK_S = 0.09
"""Least span over which that share is measured."""

# NVML clocks-event-reason bits (nvml.h, nvmlClocksEventReason*).
_POWER_CAP = 0x4
_VOIDING = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_REASONS = {_POWER_CAP: "software power cap", 0x10: "sync boost", **_VOIDING}


@dataclass(frozen=True)
class Poll:
    """One look at the device."""

    at_s: float
    """`time.monotonic`, which all processes of a machine share."""
    sm_clock_mhz: float = 0.0
    memory_clock_mhz: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    reasons: int = 0
    """NVML clocks-event-reason bits."""
    pids: frozenset[int] = frozenset()
    """Compute processes on the GPU."""
    foreign_cpu_share: float = 0.0


class Probe(ABC):
    """Reads the device once."""

    available = True
    peers: tuple[int, ...] = ()
    """Processes beside the worker that work with it: the other ranks."""

    @abstractmethod
    def poll(self, worker_pid: int) -> Poll:
        """The state now."""


class NvmlProbe(Probe):
    """NVML through nvidia-ml-py, for the GPU of the given UUID."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def poll(self, worker_pid: int) -> Poll:
        """See `Probe.poll`."""
        nvml, handle = self._nvml, self._handle
        return Poll(
            at_s=monotonic(),
            sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            reasons=nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            pids=frozenset(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        )


class CpuProbe(Probe):
    """How much of the machine processes other than the worker kept busy since the last look at `/proc`.

    The kernel counts in ticks of 10 ms, the whole machine's and a process's at different moments: over less than
    some of them one tick reads as a busy machine, so a poll soon after another repeats what that said.
    """

    def __init__(self) -> None:
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._cores = os.cpu_count() or 1
        self._last = (monotonic(), 0.0, 0.0)
        self._share = 0.0
        self._lock = threading.Lock()

    def poll(self, worker_pid: int) -> Poll:
        """See `Probe.poll`."""
        with self._lock:
            now = monotonic()
            then, busy_then, own_then = self._last
            elapsed = now - then
            if elapsed >= _SHORTEST_LOOK_S or not busy_then:
                busy, own = self._busy_s(), sum(map(self._tree_s, (worker_pid, os.getpid(), *self.peers)))
                foreign = (busy - busy_then) - (own - own_then) if busy_then else 0.0
                self._share = min(max(foreign, 0.0) / (max(elapsed, 1e-3) * self._cores), 1.0)
                self._last = (now, busy, own)
            return Poll(at_s=now, foreign_cpu_share=self._share)

    def _busy_s(self) -> float:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        )
        return (user + nice + system + irq + softirq) / self._ticks_per_s

    def _tree_s(self, pid: int) -> float:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / self._ticks_per_s


class Watcher:
    """Polls in a thread between `start` and `stop`; answers for any span of monotonic time."""

    def __init__(self, probe: Probe, worker_pid: int) -> None:
        self._probe = probe
        self._worker_pid = worker_pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._polls: list[Poll] = []
        self.own_pids: frozenset[int] = frozenset()
        """Processes that may be on the GPU; none on a CPU, where they are not told apart."""

    def start(self) -> None:
        """Begin polling."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """End polling; returns when the thread has gone."""
        self._stop.set()
        self._thread.join()

    def adopt_processes(self) -> None:
        """Take the processes now on the GPU for the worker's own, once its context exists.

        In a container NVML reports the host's pids, so the worker cannot be told by its own pid; the caller refuses a
        GPU with more than one process.
        """
        self.own_pids = self._look().pids

    def void(self, start_s: float, stop_s: float) -> str:
        """Why a block in that span does not count, or ""."""
        self._look()
        for poll in self._span(start_s, stop_s):
            for bit, reason in _VOIDING.items():
                if poll.reasons & bit:
                    return reason
            if self.own_pids and poll.pids - self.own_pids:
                return f"foreign process {min(poll.pids - self.own_pids)} on the GPU"
            if poll.foreign_cpu_share > _FOREIGN_CPU_SHARE:
                return f"other processes kept {poll.foreign_cpu_share:.0%} of the cores busy"
        return ""

    def record(self, start_s: float, stop_s: float, blocks_void: int) -> TelemetryRecord:
        """Summary of a span for the store."""
        polls = self._span(start_s, stop_s)
        if not polls or not self._probe.available:
            return TelemetryRecord(available=False, blocks_void=blocks_void)
        reasons = 0
        for poll in polls:
            reasons |= poll.reasons
        foreign = frozenset().union(*(poll.pids for poll in polls)) - self.own_pids if self.own_pids else frozenset()
        return TelemetryRecord(
            available=True,
            polls=len(polls),
            sm_clock_mhz_median=statistics.median(poll.sm_clock_mhz for poll in polls),
            sm_clock_mhz_min=min(poll.sm_clock_mhz for poll in polls),
            memory_clock_mhz_median=statistics.median(poll.memory_clock_mhz for poll in polls),
            power_w_median=statistics.median(poll.power_w for poll in polls),
            temperature_c_max=max(poll.temperature_c for poll in polls),
            throttle_reasons=tuple(name for bit, name in _REASONS.items() if reasons & bit),
            foreign_pids=tuple(sorted(foreign)),
            foreign_cpu_share_max=max(poll.foreign_cpu_share for poll in polls),
            blocks_void=blocks_void,
        )

    def _look(self) -> Poll:
        poll = self._probe.poll(self._worker_pid)
        self._polls.append(poll)
        return poll

    def _span(self, start_s: float, stop_s: float) -> list[Poll]:
        return [poll for poll in list(self._polls) if start_s <= poll.at_s <= stop_s + POLL_S]

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()


def probe_for(device_type: str, uuid: str) -> Probe:
    """NVML for a GPU, `/proc` for a CPU."""
    return NvmlProbe(uuid) if device_type == "cuda" else CpuProbe()
