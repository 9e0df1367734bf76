"""One process that measures, and the line to it: spawned in a session of its own, heard with time limits, watched."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from harness.errors import UnfitError
from harness.measure.telemetry import Probe, Watcher
from harness.protocol import BlockQuery, Reply, TelemetryQuery
from harness.schema.measurement import DeviceRecord
from harness.schema.vocabulary import ArmStatus

M = TypeVar("M")


@dataclass
class Death:
    """How a process ended before its work did."""

    arm: str
    phase: str
    status: ArmStatus
    reason: str


class Garbled(BaseModel):
    """What stands for a line that is no message: somebody else wrote to the process's pipe."""

    text: str


class WorkerLine(Generic[M]):
    """A process started as `python -m <module> IN OUT` with two pipe descriptors."""

    def __init__(
        self,
        module: str,
        log: Path,
        environment: Mapping[str, str],
        messages: TypeAdapter[M],
        arguments: Sequence[str] = (),
    ) -> None:
        self.log = log
        self._messages = messages
        self._buffer = bytearray()
        self.watcher: Watcher | None = None
        to_read, self._in_fd = os.pipe()
        self._out_fd, from_write = os.pipe()
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, str(to_read), str(from_write), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(to_read, from_write),
                env=dict(environment),
                # Ctrl-C is the supervisor's to handle, and a hung process is killed with its compilers.
                start_new_session=True,
            )
        os.close(to_read)
        os.close(from_write)

    def send(self, message: BaseModel) -> None:
        """Write one message; a process that has gone is found out when it is heard next."""
        with contextlib.suppress(BrokenPipeError):
            left = memoryview(message.model_dump_json().encode() + b"\n")
            while left:
                left = left[os.write(self._in_fd, left) :]

    def receive(self, limit: float) -> M | Garbled | None:
        """The next message; None at end of file or past the limit (`time.monotonic`)."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out_fd, selectors.EVENT_READ)
            while (message := self.heard()) is None:
                left = limit - monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                if not self.read():
                    self.process.wait()
                    return None
        return message

    def fileno(self) -> int:
        """The descriptor that its messages come from."""
        return self._out_fd

    def read(self) -> bool:
        """Take in what lies in the pipe, waiting for something; False at its end."""
        chunk = os.read(self._out_fd, 1 << 20)
        self._buffer += chunk
        return bool(chunk)

    def heard(self) -> M | Garbled | None:
        """The next message that was taken in whole."""
        line, end, rest = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer[:] = rest
        try:
            return self._messages.validate_json(bytes(line))
        except ValidationError:
            return Garbled(text=f"wrote to the worker's own pipe: {bytes(line[:60])!r}")

    def watch(self, device: DeviceRecord, probe: Callable[[str, str], Probe]) -> None:
        """Start the watcher beside it. Raises UnfitError when another process is on the device."""
        self.watcher = Watcher(probe(device.type, device.uuid), self.process.pid)
        self.watcher.start()
        self.watcher.adopt_processes()
        if len(self.watcher.own_pids) > 1:
            raise UnfitError(
                f"{len(self.watcher.own_pids) - 1} other compute processes are on {device.name}; wait for them."
            )

    def answer(self, question: BlockQuery | TelemetryQuery) -> None:
        """What the watcher saw in the span that the process asks about."""
        assert self.watcher is not None, "a process that is not watched yet asks nothing"
        if isinstance(question, BlockQuery):
            self.send(Reply(void=self.watcher.void(question.start_s, question.stop_s)))
        else:
            seen = self.watcher.record(question.start_s, question.stop_s, question.void)
            self.send(Reply(telemetry=seen))

    def death(self, arm: str, phase: str) -> Death:
        """Why nothing more was heard of it."""
        if self.process.poll() is None and not self._readable():
            return Death(arm, phase, ArmStatus.TIMED_OUT, f"in {phase}: no sign of life within the time limit")
        return Death(arm, phase, ArmStatus.CRASHED, f"in {phase}: {self.end_of_process()}")

    def end_of_process(self) -> str:
        """How the process ended, with its last words; waits for it."""
        code = self.process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = self.log_tail()
        return how + (f" ({tail})" if tail else "")

    def log_tail(self) -> str:
        """The last line of its log that says something."""
        try:
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            return ""
        return lines[-1][:200] if lines else ""

    def end(self) -> None:
        """Kill it with all it started, and close the line."""
        if self.watcher is not None:
            self.watcher.stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._in_fd)
        os.close(self._out_fd)

    def _readable(self) -> bool:
        """Whether the pipe is at its end: the process is going, even if it has not gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out_fd, selectors.EVENT_READ)
            return bool(selector.select(0))
