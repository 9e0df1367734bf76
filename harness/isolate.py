"""Supervises workers: time limits, blame, quarantine, the lock on the GPU, the watcher beside it.

A worker that dies takes only its own task down. The culprit is found by running the task again with fewer candidates
(the suspect alone first, then halves of the rest), is quarantined for that task, and the others are measured cleanly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import cast

from harness.device_lock import DeviceLock, expected_uuid
from harness.errors import UnfitError
from harness.measure.telemetry import Probe, probe_for
from harness.paths import require_writable
from harness.prebuild import build_ahead
from harness.processes import worker_environment
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
    Task,
    TelemetryQuery,
    Unfit,
    from_worker,
    stored_settings,
)
from harness.rank_group import death_of, worker_line
from harness.schema.measurement import EnvironmentRecord, Measurement, TelemetryRecord
from harness.schema.vocabulary import ArmStatus, Cache, Method, RunStatus
from harness.worker_line import Death, WorkerLine

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
        self._worker: WorkerLine[FromWorker] | None = None
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
        for rank in range(self.job.ranks):
            if (uuid := expected_uuid(self.job.device_type, rank)) is not None:
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

        Raises UnfitError when the clock's controls fail, or a worker died where nothing more can be written.
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
            # compile caches and logs lie there, and no arm is to blame for a full disk
            require_writable(self._logs, f"the worker of {task.name} died; what was measured before is kept.")
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
        found = set(self._identities[index]) - set(task.quarantined)
        return found if task.only is None else found & task.only

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
        worker = self._new_worker()
        self._worker = worker
        worker.send(self.job.model_copy(update={"tasks": tasks}))
        message = worker.receive(monotonic() + _START_LIMIT_S)
        if not isinstance(message, Hello):
            raise UnfitError(f"the worker did not start: {worker.log_tail() or 'no output'} (log: {worker.log})")
        self._record = message.environment
        if tasks == self.job.tasks:
            self._identities = message.identities
        for device in (message.environment.device, *message.peers):
            self._lock.hold(device.uuid)
        worker.watch(message.environment.device, self._probe)
        self.progress.hello(message.environment)
        return message

    def _new_worker(self) -> WorkerLine[FromWorker]:
        log = self._log_file(self.job.op)
        return worker_line("harness.worker", log, self._worker_environment(), from_worker, self.job.ranks)

    def _log_file(self, name: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}.log"

    def _worker_environment(self) -> dict[str, str]:
        return {**worker_environment(self._cache, self.job.device_type), **self._environment}

    def _drain(self, pending: list[Task]) -> Generator[Measurement, None, Death | None]:
        """Run `pending` in the present worker; measured tasks are removed and yielded. Returns its Death or None."""
        worker = self._worker
        assert worker is not None
        worker.send(Go(tasks=tuple(pending)))
        arm, phase, limit = "", "", monotonic() + _NO_ARM_LIMIT_S
        while True:
            message = worker.receive(limit)
            if isinstance(message, Begin):
                arm, phase, limit = message.arm, message.phase, monotonic() + message.limit_s
                self.progress.step(message.task, arm, phase)
            elif isinstance(message, BlockQuery | TelemetryQuery):
                worker.answer(message)
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
                death = death_of(worker, message, arm, phase)
                self._end_worker()
                return death

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None
