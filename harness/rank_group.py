"""The processes of a job of several ranks, and the line to them: they start, are heard, watched and killed together.

They find each other through torchrun's variables. Rank 0 speaks the protocol of `harness.protocol`; the others say only
which step they begin and end, so that the rank that died, raised or hangs is known by name.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import cast

from pydantic import TypeAdapter

from harness.measure.telemetry import Probe
from harness.protocol import Begin, BlockQuery, Ended, Greeting, Lost, Reply, TelemetryQuery
from harness.schema.measurement import DeviceRecord, TelemetryRecord
from harness.schema.vocabulary import ArmStatus
from harness.worker_line import Death, Garbled, M, WorkerLine

PEERS_LOST_CODE = 86
"""Exit code of a rank that ended because another had gone: it is not to blame."""
APART_LIMIT_S = 20.0
"""How long the others may take to end a step that one rank has raised in; inside a collective they would wait on."""
_GONE_LIMIT_S = 5.0
"""How long the rank that died first may take to be seen dead after another noticed."""

MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off, whatever the person's environment says; see `harness.measure.multicast`."""


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would tell this rank, with everything on this host, and what all ranks are told."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The name of a host need not be one of its addresses.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **MULTICAST_OFF,
    }


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class _Step:
    """Where a rank is."""

    begun: int = 0
    """Steps so far; another rank's message of the same step may be read before or after this one's."""
    ended: bool = True
    error: str = ""


class WorkerGroup(WorkerLine[M]):
    """`WorkerLine` to several ranks: this object is the line to rank 0, and holds those to the others."""

    def __init__(
        self, module: str, log: Path, environment: Mapping[str, str], messages: TypeAdapter[M], ranks: int
    ) -> None:
        port = free_port()
        arguments = (str(ranks),)
        super().__init__(module, log, {**environment, **rank_environment(0, ranks, port)}, messages, arguments)
        self.lines: list[WorkerLine[M]] = [self]
        try:
            for rank in range(1, ranks):
                told = {**environment, **rank_environment(rank, ranks, port)}
                rank_log = log.with_name(f"{log.stem}-rank{rank}.log")
                self.lines.append(WorkerLine(module, rank_log, told, messages, arguments))
        except BaseException:
            self.end()
            raise
        self._steps = [_Step() for _ in self.lines]
        self._apart_since: float | None = None
        self._noticed = False
        self._peers: tuple[DeviceRecord, ...] = ()

    def receive(self, limit: float) -> M | Garbled | None:
        """The next message of rank 0, or the end of the group's work; None when a rank has gone, raised alone or hangs.

        `limit` is in `time.monotonic`.
        """
        with selectors.DefaultSelector() as selector:
            for rank, line in enumerate(self.lines):
                selector.register(line.fileno(), selectors.EVENT_READ, rank)
            while True:
                for rank, line in enumerate(self.lines):
                    while (message := line.heard()) is not None:
                        if (said := self._heard_of(rank, message)) is not None:
                            return said
                if self._noticed:
                    return None
                left = self._limit(limit) - monotonic()
                if left <= 0 or not (ready := selector.select(left)):
                    return None
                for key, _ in ready:
                    # what the others said before one ended is heard first: they may have begun the step it died in
                    self._noticed |= not self.lines[key.data].read()

    def _heard_of(self, rank: int, message: M | Garbled) -> M | Garbled | None:
        """What of a rank's message concerns the caller."""
        if isinstance(message, Ended):
            self._steps[rank] = _Step(self._steps[rank].begun, ended=True, error=message.error)
            if message.error and self._apart_since is None:
                self._apart_since = monotonic()
            if not self._late():
                self._apart_since = None
            return None
        if isinstance(message, Begin):
            self._steps[rank] = _Step(self._steps[rank].begun + 1, ended=False)
        elif isinstance(message, Greeting):
            self._peers = message.peers
        elif isinstance(message, Lost):
            named = message.error if message.error.startswith("rank ") else f"rank {rank}: {message.error}"
            return cast(M, message.model_copy(update={"error": named}))
        elif isinstance(message, Garbled):
            return Garbled(text=f"rank {rank} {message.text}")
        return message if rank == 0 else None

    def _late(self) -> list[int]:
        """Ranks that have not ended the step that the foremost is in."""
        now = max(step.begun for step in self._steps)
        return [rank for rank, step in enumerate(self._steps) if step.begun < now or not step.ended]

    def _limit(self, limit: float) -> float:
        return limit if self._apart_since is None else min(limit, self._apart_since + APART_LIMIT_S)

    # -- the devices -----------------------------------------------------------------------------------------------

    def watch(self, device: DeviceRecord, probe: Callable[[str, str], Probe]) -> None:
        """As of one process, for every rank's device: the ranks are no strangers to each other."""
        if device.type == "cpu":
            super().watch(device, lambda *of: self._among_peers(probe(*of)))
            return
        super().watch(device, probe)
        for line, theirs in zip(self.lines[1:], self._peers, strict=True):
            line.watch(theirs, probe)
        ours = frozenset().union(*(line.watcher.own_pids for line in self.lines if line.watcher))
        for line in self.lines:
            if line.watcher:
                line.watcher.own_pids = ours

    def _among_peers(self, probe: Probe) -> Probe:
        probe.peers = tuple(line.process.pid for line in self.lines[1:])
        return probe

    def answer(self, question: BlockQuery | TelemetryQuery) -> None:
        """What the watchers of all devices saw in the span that rank 0 asks about."""
        watchers = [line.watcher for line in self.lines if line.watcher is not None]
        if isinstance(question, BlockQuery):
            voids = (watcher.void(question.start_s, question.stop_s) for watcher in watchers)
            self.send(Reply(void=next((void for void in voids if void), "")))
        else:
            records = [watcher.record(question.start_s, question.stop_s, question.void) for watcher in watchers]
            self.send(Reply(telemetry=_of_all(records)))

    # -- the end ---------------------------------------------------------------------------------------------------

    def death(self, arm: str, phase: str) -> Death:
        """Which rank is to blame that nothing more was heard, and for what."""
        if (gone := self._gone()) is not None:
            why = f"in {phase}: rank {gone} {self.lines[gone].end_of_process()}"
            return Death(arm, phase, ArmStatus.CRASHED, why)
        if raised := [(rank, step.error) for rank, step in enumerate(self._steps) if step.error]:
            return Death(arm, phase, ArmStatus.CRASHED, "rank {}: {}".format(*raised[0]))
        late = self._late()
        who = f"rank {', '.join(map(str, late))}: " if 0 < len(late) < len(self._steps) else ""
        return Death(arm, phase, ArmStatus.TIMED_OUT, f"in {phase}: {who}no sign of life within the time limit")

    def _gone(self) -> int | None:
        """The rank that ended first: by a signal, or by an exit that is not for the loss of another."""
        deadline = monotonic() + _GONE_LIMIT_S
        while self._noticed:
            codes = [line.process.poll() for line in self.lines]
            own = [(code > 0, rank) for rank, code in enumerate(codes) if code is not None and code != PEERS_LOST_CODE]
            if own:
                return min(own)[1]
            if monotonic() > deadline:
                return next((rank for rank, code in enumerate(codes) if code is not None), None)
            sleep(0.02)
        return None

    def log_tail(self) -> str:
        """The last words of the rank that ended first, else rank 0's."""
        gone = self._gone()
        return super().log_tail() if not gone else f"rank {gone}: {self.lines[gone].log_tail()}"

    def end(self) -> None:
        """Kill all ranks with all they started, and close the lines."""
        for line in self.lines:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(line.process.pid, signal.SIGKILL)
        for line in self.lines[1:]:
            line.end()
        super().end()


def worker_line(
    module: str, log: Path, environment: Mapping[str, str], messages: TypeAdapter[M], ranks: int
) -> WorkerLine[M]:
    """A process that measures, or for several ranks a group of them, and the line to it."""
    if ranks == 1:
        return WorkerLine(module, log, environment, messages)
    return WorkerGroup(module, log, environment, messages, ranks)


def death_of(line: WorkerLine[M], message: object, arm: str, phase: str) -> Death:
    """How a process ended whose last message was none that goes on: Lost, Garbled or nothing at all."""
    if isinstance(message, Lost):
        return Death(message.arm or arm, phase, ArmStatus.CRASHED, message.error)
    if isinstance(message, Garbled):
        return Death(arm, phase, ArmStatus.CRASHED, message.text)
    return line.death(arm, phase)


def _of_all(records: list[TelemetryRecord]) -> TelemetryRecord:
    """Rank 0's record, with the lowest clock, the highest temperature and everything that any device throttled for."""
    return records[0].model_copy(
        update={
            "sm_clock_mhz_min": min(record.sm_clock_mhz_min for record in records),
            "temperature_c_max": max(record.temperature_c_max for record in records),
            "throttle_reasons": tuple(dict.fromkeys(why for record in records for why in record.throttle_reasons)),
            "foreign_pids": tuple(sorted({pid for record in records for pid in record.foreign_pids})),
        }
    )
