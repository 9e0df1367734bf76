"""Stage 2: from a cell to a decided sequence of fresh processes, one line of the store each.

Process 0 is the pilot: it proves the wiring, measures the ceiling, and the spread of its pairs sets how many pairs all
processes take and how many processes the budget allows. From then on nothing depends on what was found but the rule's
own stopping. Compile caches are empty in processes 0, 2, 4, ... and kept from the one before in the others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal

from harness.device_lock import DeviceLock, expected_uuid
from harness.e2e.protocol import CellDone, CellHello, CellJob, CellRefused, CellSettings, FromCell, from_cell
from harness.e2e.select import Cell
from harness.e2e.stopping import settled
from harness.errors import UnfitError
from harness.isolate import Progress
from harness.measure.telemetry import Probe, probe_for
from harness.processes import worker_environment
from harness.protocol import Begin, BlockQuery, Blocks, TelemetryQuery
from harness.schema.manifest import Tolerance
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.schema.workload import merged
from harness.stats.rule import Budget, RuleSettings, processes_in_budget
from harness.store import ProcessStore
from harness.worker_line import Death, WorkerLine

_START_LIMIT_S = 180.0
FIRST_ONLY = (ModelRole.CEILING, ModelRole.OPAQUE)
"""Roles that run in process 0 alone."""
_MAX_DEATHS = 3
"""Deaths of one process before the cell is given up."""


@dataclass
class Outcome:
    """What became of one cell's run."""

    records: list[ProcessRecord]
    kept: int
    """Processes that were in the store already."""
    failure: str = ""
    """Why the sequence could not be finished; empty when it was."""


class CellRunner:
    """Runs cells on one device. A context manager: leaving it ends the process and frees the lock."""

    def __init__(
        self,
        root: Path,
        work_folder: Path,
        store: ProcessStore,
        device_type: Literal["cuda", "cpu"],
        settings: CellSettings,
        progress: Progress,
        *,
        extra: tuple[str, ...] = (),
        broken: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        probe: Callable[[str, str], Probe] = probe_for,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self.store = store
        self.device_type: Literal["cuda", "cpu"] = device_type
        self.settings = settings
        self.progress = progress
        self.extra = extra
        self.broken = dict(broken or {})
        self.checkpoint = checkpoint
        self._logs = work_folder / "logs"
        self._cache = work_folder / "cache" / f"e2e-{device_type}"
        self._probe = probe
        self._environment = dict(environment or {})
        self._lock = DeviceLock()
        self._line: WorkerLine[FromCell] | None = None

    def __enter__(self) -> CellRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._lock.release()

    def run(
        self,
        cell: Cell,
        tolerance: Tolerance,
        candidates: tuple[str, ...],
        *,
        fresh: bool,
        on_record: Callable[[ProcessRecord], None],
    ) -> Outcome:
        """Start processes until the rule has decided every candidate or the declared number has run.

        Goes on with an unfinished sequence of the same cell, sources, versions, candidates and settings; a finished
        one is kept, unless `fresh`. Raises UnfitError when nothing can be measured here.
        """
        if (uuid := expected_uuid(self.device_type)) is not None:
            self._lock.hold(uuid)
        job = self._job(cell, tolerance, candidates)
        quarantined: dict[str, tuple[ArmStatus, str]] = {}
        done: list[ProcessRecord] = []
        deaths = kept = 0
        looked = fresh
        while True:
            job = job.model_copy(update={"process": len(done), "cold_compile": len(done) % 2 == 0})
            job = job.model_copy(update={"quarantined": dict(quarantined)})
            if done:
                job = job.model_copy(update={"pairs": done[0].pairs, "p_max": self._p_max(done)})
                if len(done) >= self._p_max(done) or settled(done, self._p_max(done)):
                    return Outcome(done, kept)
            if done:
                job = job.model_copy(update={"sequence": done[0].sequence})
            result = self._process(job, look_in_store=not looked)
            looked = True
            if isinstance(result, Death):
                deaths += 1
                self.progress.note(
                    f"{cell.name}: process {len(done)} died in {result.phase or 'start'}: {result.reason}"
                )
                if result.arm not in candidates or deaths > _MAX_DEATHS:
                    return Outcome(done, kept, f"{result.arm or 'the model'}: {result.reason}")
                quarantined[result.arm] = (result.status, result.reason)
                self.progress.note(f"{cell.name}: {result.arm} is left out from here on")
                continue
            if isinstance(result, str):
                return Outcome(done, kept, result)
            if isinstance(result, list):
                done, kept = result, len(result)
                continue
            if not done:
                for drifted in _drifted(result, cell):
                    self.progress.note(f"{cell.name}: {drifted} is not what the wiring was written for")
            self.store.append(result)
            on_record(result)
            if result.status is not RunStatus.MEASURED:
                return Outcome([*done, result], kept, f"process {result.process}: {result.status}: {result.reason}")
            done.append(result)

    def _p_max(self, done: list[ProcessRecord]) -> int:
        """Processes the budget allows, from what process 0 cost; later ones lack its ceiling and its checks."""
        if len(done) > 1 and done[1].p_max is not None:
            return done[1].p_max
        first = done[0]
        extra_s = sum(first.phases_s.get(name, 0.0) for name in ("shadow", "quality"))
        arms = len(first.timed_arms)
        later = sum(arm.id in first.timed_arms and arm.role not in FIRST_ONLY for arm in first.arms)
        budget = Budget(
            self.settings.budget_s, max(first.start_s - extra_s, 1.0), max(first.pair_s * later / max(arms, 1), 1e-6)
        )
        # P_LOSS processes at least, or no verdict could ever be made
        return max(int(processes_in_budget(first.pairs, budget)), RuleSettings().p_loss)

    def _job(self, cell: Cell, tolerance: Tolerance, candidates: tuple[str, ...]) -> CellJob:
        component, workload = cell.component, cell.workload
        config = merged(workload.config, component.config)
        if self.device_type == "cpu":
            config = merged(config, component.rehearsal.config)
            component = component.model_copy(update={"inputs": component.rehearsal.inputs})
        return CellJob(
            root=str(self.root),
            op=cell.op,
            workload=workload.workload,
            family=workload.family,
            context=cell.wiring.context,
            config=config,
            component=component,
            device_type=self.device_type,
            tolerance=tolerance,
            candidates=candidates,
            sequence=datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f"),
            process=0,
            cold_compile=True,
            pairs=None,
            p_max=None,
            checkpoint=self.checkpoint,
            settings=self.settings,
            extra=self.extra,
            broken=self.broken,
        )

    # -- one process -----------------------------------------------------------------------------------------------

    def _process(self, job: CellJob, *, look_in_store: bool) -> ProcessRecord | list[ProcessRecord] | Death | str:
        """Run one process: its record; how it died; why the cell is refused; or the stored processes to go on from."""
        if job.cold_compile:
            shutil.rmtree(self._cache, ignore_errors=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"e2e-{job.op}-{job.workload}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}.log"
        environment = {**worker_environment(self._cache, self.device_type), **self._environment}
        line = WorkerLine("harness.e2e.worker", log, environment, from_cell)
        self._line = line
        try:
            line.send(job)
            hello = line.receive(monotonic() + _START_LIMIT_S)
            if not isinstance(hello, CellHello):
                raise UnfitError(f"the process did not start: {line.log_tail() or 'no output'} (log: {log})")
            self._lock.hold(hello.environment.device.uuid)
            if look_in_store and (stored := self._stored(job, hello)):
                return stored
            line.watch(hello.environment.device, self._probe)
            self.progress.hello(hello.environment)
            return self._drain(line, job)
        finally:
            self._end()

    def _stored(self, job: CellJob, hello: CellHello) -> list[ProcessRecord]:
        """The processes of the newest stored sequence that this one would repeat, in order; none if there is none."""
        sequences: dict[str, list[ProcessRecord]] = {}
        for one in self.store.load(job.op):
            record = one.record
            if record.status is RunStatus.MEASURED and _same(record, job, hello):
                sequences.setdefault(record.sequence, []).append(record)
        newest = max(sequences.values(), key=lambda records: records[-1].started_at, default=[])
        in_order = sorted(newest, key=lambda record: record.process)
        # a gap would join processes that the rule never saw in this order
        return in_order if [record.process for record in in_order] == list(range(len(in_order))) else []

    def _drain(self, line: WorkerLine[FromCell], job: CellJob) -> ProcessRecord | Death | str:
        arm, phase, limit = "", "", monotonic() + _START_LIMIT_S
        while True:
            message = line.receive(limit)
            if isinstance(message, Begin):
                arm, phase, limit = message.arm, message.phase, monotonic() + message.limit_s
                self.progress.step(f"{message.task} process {job.process}", arm, phase)
            elif isinstance(message, BlockQuery | TelemetryQuery):
                line.answer(message)
            elif isinstance(message, Blocks):
                self.progress.blocks(message.done, message.most)
            elif isinstance(message, CellDone):
                return message.record
            elif isinstance(message, CellRefused):
                return message.reason
            else:
                return line.death(arm, phase)

    def _end(self) -> None:
        if self._line is not None:
            self._line.end()
            self._line = None


def _same(record: ProcessRecord, job: CellJob, hello: CellHello) -> bool:
    """Whether the record is a process of the sequence that the job would start."""
    candidates = {arm.id for arm in record.arms if arm.role is ModelRole.CANDIDATE}
    ignored = {"git_sha", "device"}
    return (
        (record.workload, record.context) == (job.workload, job.context)
        and record.component == job.component
        and candidates == set(job.candidates)
        and record.seed == job.settings.seed
        and record.settings == job.settings.stored()
        and (record.checkpoint is None) == (job.checkpoint is None)
        and (record.e2e_sha256, record.wiring_sha256) == (hello.e2e_sha256, hello.wiring_sha256)
        and record.environment.device.uuid == hello.environment.device.uuid
        and record.environment.model_dump(exclude=ignored) == hello.environment.model_dump(exclude=ignored)
    )


def _drifted(record: ProcessRecord, cell: Cell) -> list[str]:
    """Upstream objects whose source has changed since the wiring was written. What it does is proved all the same:
    native through the wiring gives the model's own output, with as many calls."""
    return [name for name, pinned in cell.wiring.pinned.items() if record.upstream.get(name) != pinned]
