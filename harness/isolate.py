"""Supervises workers: time limits, blame, quarantine, the lock on the GPU, the watcher beside it.

A worker that dies takes only its own task down. The culprit is found by running the task again with fewer candidates
(the suspect alone first, then halves of the rest), is quarantined for that task, and the others are measured cleanly.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import cast

from pydantic import ValidationError

from harness.device_lock import DeviceLock, expected_uuid
from harness.errors import UnfitError
from harness.measure.telemetry import Probe, Watcher, probe_for
from harness.prebuild import build_ahead
from harness.protocol import (
    Begin,
    BlockQuery,
    Blocks,
    Done,
    Finished,
    FromWorker,
    Go,
    Hello,
    Job,
    Lost,
    Reply,
    Task,
    TelemetryQuery,
    ToWorker,
    Unfit,
    from_worker,
    stored_settings,
)
from harness.schema.measurement import EnvironmentRecord, Measurement, TelemetryRecord
from harness.schema.vocabulary import ArmStatus, Cache, Method, RunStatus

_START_LIMIT_S = 180.0
"""From the start of a worker to its first message: importing torch on a cold disk is slow."""
_NO_ARM_LIMIT_S = 600.0
BASELINE_SIDE = frozenset[str]()
"""`Task.only` of a run with no candidate but the baseline, its twin and eager native."""


class Progress:
    """What a supervisor tells whoever shows progress; the default shows nothing."""

    def hello(self, environment: EnvironmentRecord) -> None:
        """The worker is up."""

    def step(self, task: str, arm: str, phase: str) -> None:
        """The worker touches an arm."""

    def blocks(self, done: int, most: int) -> None:
        """Blocks measured of at most so many."""

    def note(self, text: str) -> None:
        """Something a person should read: a crash, a quarantine."""


@dataclass
class Death:
    """How a worker ended before its tasks did."""

    arm: str
    phase: str
    status: ArmStatus
    reason: str


@dataclass
class _Started:
    """One running worker."""

    process: subprocess.Popen[bytes]
    out_fd: int
    in_fd: int
    log: Path
    buffer: bytearray = field(default_factory=bytearray)
    watcher: Watcher | None = None

    def send(self, message: ToWorker) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.in_fd, message.model_dump_json().encode() + b"\n")

    def end(self) -> None:
        if self.watcher is not None:
            self.watcher.stop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.in_fd)
        os.close(self.out_fd)


class Supervisor:
    """Measures the tasks of one job. A context manager: leaving it ends the worker and frees the lock."""

    def __init__(
        self,
        job: Job,
        work_folder: Path,
        progress: Progress,
        *,
        probe: Callable[[str, str], Probe] = probe_for,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.job = job
        self.progress = progress
        self._logs = work_folder / "logs"
        self._cache = work_folder / "cache" / job.device_type
        self._probe = probe
        self._environment = dict(environment or {})
        self._worker: _Started | None = None
        self._lock = DeviceLock()
        self._record: EnvironmentRecord | None = None
        self._failure: UnfitError | None = None

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_worker()
        self._lock.release()

    def hello(self) -> Hello:
        """Start a worker and hear what it would measure. Raises UnfitError when it cannot start or the GPU is busy."""
        if (uuid := expected_uuid(self.job.device_type)) is not None:
            self._lock.hold(uuid)
        return self._start(self.job.tasks)

    def build_ahead(self, tasks: list[Task]) -> list[Task]:
        """Fill the compile caches with several builders at once; the tasks with their build times."""
        if self.job.device_type == "cuda":
            self.progress.step("compiling ahead", "", "")
        log = self._log_file(f"{self.job.op}-builders")
        return build_ahead(self.job, tasks, self._worker_environment(), log)

    def run(self, tasks: list[Task]) -> Iterator[Measurement]:
        """Measure the tasks, in order; each is yielded once, as soon as it is done.

        Raises UnfitError when the clock's controls fail.
        """
        pending = list(tasks)
        retried: set[str] = set()
        while pending:
            if self._worker is None:
                self._start(tuple(pending))
            death = yield from self._drain(pending)
            if death is None:
                return
            task = pending[0]
            self.progress.note(f"{task.name}: worker died in {death.phase or 'start'}: {death.reason}")
            guilty = self._culprits(task, death)
            if guilty:
                self.progress.note(f"{task.name}: quarantined {', '.join(guilty)}")
                pending[0] = task.model_copy(update={"quarantined": {**task.quarantined, **guilty}})
            elif task.name in retried:
                yield self._dead_measurement(pending.pop(0), death)
            else:
                retried.add(task.name)

    # -- blame -----------------------------------------------------------------------------------------------------

    def _culprits(self, task: Task, death: Death) -> dict[str, tuple[ArmStatus, str]]:
        """Candidates whose presence kills a worker on this task, with how."""
        candidates = sorted(self._candidates_of(task))
        if death.arm in candidates and (again := self._trial(task, {death.arm})) is not None:
            return {death.arm: (again.status, again.reason)}
        if self._trial(task, set()) is not None:
            return {}
        return self._search(task, [arm for arm in candidates if arm != death.arm])

    def _search(self, task: Task, arms: list[str]) -> dict[str, tuple[ArmStatus, str]]:
        if not arms or (death := self._trial(task, set(arms))) is None:
            return {}
        if len(arms) == 1:
            return {arms[0]: (death.status, death.reason)}
        middle = len(arms) // 2
        return self._search(task, arms[:middle]) | self._search(task, arms[middle:])

    def _trial(self, task: Task, arms: set[str]) -> Death | None:
        """How a worker dies on the task with only these candidates, or None when it lives."""
        self._start((task,))
        trial = task.model_copy(update={"only": frozenset(arms), "trial": True})
        steps = self._drain([trial])
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return cast("Death | None", end.value)

    def _candidates_of(self, task: Task) -> set[str]:
        index = next(i for i, t in enumerate(self.job.tasks) if (t.case.id, t.context) == (task.case.id, task.context))
        return set(self._identities[index]) - set(task.quarantined)

    def _dead_measurement(self, task: Task, death: Death) -> Measurement:
        """The record of a task that no worker survived, though no single candidate is to blame."""
        assert self._record is not None
        timed_out = death.status is ArmStatus.TIMED_OUT
        return Measurement(
            op=self.job.op,
            case=task.case,
            context=task.context,
            status=RunStatus.TIMED_OUT if timed_out else RunStatus.CRASHED,
            reason=f"{death.arm or 'all arms'} in {death.phase}: {death.reason}; no single candidate does it alone",
            environment=self._record,
            controls=None,
            roofline=None,
            method=Method.WALL if self.job.device_type == "cpu" else Method.CUDA_GRAPH,
            cache=Cache.WARM,
            rotation=0,
            rotated_bytes=0,
            compile_cache="kept",
            seed=self.job.settings.seed,
            settings=stored_settings(self.job.settings),
            input_fingerprints={},
            orders=(),
            timed_arms=(),
            arms=(),
            telemetry=TelemetryRecord(available=False),
            phases_s={},
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    # -- one worker ------------------------------------------------------------------------------------------------

    def _start(self, tasks: tuple[Task, ...]) -> Hello:
        self._end_worker()
        self._worker = self._spawn()
        self._worker.send(self.job.model_copy(update={"tasks": tasks}))
        limit = monotonic() + _START_LIMIT_S
        message = self._receive(self._worker, limit)
        if not isinstance(message, Hello):
            tail = _log_tail(self._worker.log)
            raise UnfitError(f"the worker did not start: {tail or 'no output'} (log: {self._worker.log})")
        self._record = message.environment
        if tasks == self.job.tasks:
            self._identities = message.identities
        self._lock.hold(message.environment.device.uuid)
        device = message.environment.device
        watcher = Watcher(self._probe(device.type, device.uuid), self._worker.process.pid)
        self._worker.watcher = watcher
        watcher.start()
        watcher.adopt_processes()
        if watcher.processes > 1:
            raise UnfitError(f"{watcher.processes - 1} other compute processes are on {device.name}; wait for them.")
        self.progress.hello(message.environment)
        return message

    def _log_file(self, name: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}.log"

    def _worker_environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(self._cache / "inductor"),
            "TRITON_CACHE_DIR": str(self._cache / "triton"),
            **({"TRITON_INTERPRET": "1"} if self.job.device_type == "cpu" else {}),
            **self._environment,
        }

    def _spawn(self) -> _Started:
        log = self._log_file(self.job.op)
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.worker", str(to_read), str(from_write)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(to_read, from_write),
                env=self._worker_environment(),
                # Ctrl-C is the supervisor's to handle, and a hung worker is killed with its compilers.
                start_new_session=True,
            )
        os.close(to_read)
        os.close(from_write)
        return _Started(process, from_read, to_write, log)

    def _drain(self, pending: list[Task]) -> Generator[Measurement, None, Death | None]:
        """Run `pending` in the present worker; measured tasks are removed and yielded. Returns its Death or None."""
        worker = self._worker
        assert worker is not None
        assert worker.watcher is not None
        worker.send(Go(tasks=tuple(pending)))
        arm, phase, limit = "", "", monotonic() + _NO_ARM_LIMIT_S
        while True:
            message = self._receive(worker, limit)
            if isinstance(message, Begin):
                arm, phase, limit = message.arm, message.phase, monotonic() + message.limit_s
                self.progress.step(message.task, arm, phase)
            elif isinstance(message, BlockQuery):
                worker.send(Reply(void=worker.watcher.void(message.start_s, message.stop_s)))
            elif isinstance(message, TelemetryQuery):
                record = worker.watcher.record(message.start_s, message.stop_s, message.void)
                worker.send(Reply(telemetry=record))
            elif isinstance(message, Blocks):
                self.progress.blocks(message.done, message.most)
            elif isinstance(message, Done):
                pending.pop(0)
                yield message.measurement
                arm, phase, limit = "", "", monotonic() + _NO_ARM_LIMIT_S
            elif isinstance(message, Unfit):
                self._end_worker()
                raise UnfitError(message.reason)
            elif isinstance(message, Finished):
                self._end_worker()
                return None
            else:
                death = self._death(worker, message, arm, phase)
                self._end_worker()
                return death

    def _death(self, worker: _Started, message: FromWorker | None, arm: str, phase: str) -> Death:
        if isinstance(message, Lost):
            return Death(message.arm or arm, phase, ArmStatus.CRASHED, message.error)
        if worker.process.poll() is None and not _readable(worker):
            return Death(arm, phase, ArmStatus.TIMED_OUT, f"in {phase}: no sign of life within the time limit")
        code = worker.process.wait()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = _log_tail(worker.log)
        return Death(arm, phase, ArmStatus.CRASHED, f"in {phase}: {how}" + (f" ({tail})" if tail else ""))

    def _receive(self, worker: _Started, limit: float) -> FromWorker | None:
        """The next message; None at end of file or past the limit."""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.out_fd, selectors.EVENT_READ)
            while b"\n" not in worker.buffer:
                left = limit - monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = os.read(worker.out_fd, 1 << 20)
                if not chunk:
                    worker.process.wait()
                    return None
                worker.buffer += chunk
        line, _, rest = worker.buffer.partition(b"\n")
        worker.buffer[:] = rest
        try:
            return from_worker.validate_json(bytes(line))
        except ValidationError:
            return Lost(arm="", error=f"wrote to the worker's own pipe: {bytes(line[:60])!r}")

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _readable(worker: _Started) -> bool:
    """Whether the pipe is at its end: the process is going, even if it has not gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(worker.out_fd, selectors.EVENT_READ)
        return bool(selector.select(0))


def _log_tail(log: Path) -> str:
    """The last line of a worker's log that says something."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""
