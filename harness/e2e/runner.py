"""Stage 2: from a cell to a decided sequence of fresh processes, one line of the store each.

Process 0 is the pilot: it proves the wiring, measures the ceiling, and the spread of its pairs sets how many pairs all
processes take and how many processes the budget allows. From then on nothing depends on what was found but the rule's
own stopping. Compile caches are empty in processes 0, 2, 4, ... and kept from the one before in the others.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal

from harness.device_lock import DeviceLock, expected_uuid
from harness.e2e.before import beaten_before
from harness.e2e.eta import Ahead, ahead, cell_s, later_pair_s, later_s, later_start_s, of_cell
from harness.e2e.protocol import CellDone, CellHello, CellJob, CellRefused, CellSettings, FromCell, LeftOut, from_cell
from harness.e2e.select import Cell
from harness.e2e.stopping import left_out, refused, settled
from harness.errors import UnfitError
from harness.isolate import Progress
from harness.measure.telemetry import Probe, probe_for
from harness.paths import require_writable
from harness.processes import worker_environment
from harness.protocol import Begin, BlockQuery, Blocks, TelemetryQuery
from harness.rank_group import death_of, worker_line
from harness.schema.manifest import Tolerance
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import RunStatus
from harness.schema.workload import merged
from harness.stats.rule import P_WIN, Budget, processes_in_budget
from harness.store import ProcessStore
from harness.worker_line import Death, WorkerLine

_START_LIMIT_S = 180.0
_MAX_DEATHS = 3
"""Deaths of one process before the cell is given up."""


class _Late(str):
    """Why what would be measured next does not begin: the time left is too short for it."""


@dataclass
class Outcome:
    """What became of one cell's run."""

    records: list[ProcessRecord]
    kept: int
    """Processes that were in the store already."""
    failure: str = ""
    """Why the sequence could not be finished; empty when it was."""
    left: str = ""
    """Why it was not begun or not finished in the time there was, though nothing failed."""


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
        lpips: str | None = None,
        until_s: float = math.inf,
        any_card: bool = False,
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
        self.lpips = lpips
        self.until_s = until_s
        """`time.monotonic` at which the caller's time is over: no process begins that would not end by then."""
        self.any_card = any_card
        """Whether a sequence that another card of this kind has finished is as good."""
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
        on_record: Callable[[ProcessRecord, Ahead], None],
    ) -> Outcome:
        """Start processes until the rule has decided every candidate or the declared number has run.

        Goes on with an unfinished sequence of the same cell, sources, versions, candidates and settings; a finished
        one is kept, unless `fresh`. Raises UnfitError when nothing can be measured here.
        """
        for rank in range(cell.workload.ranks):
            if (uuid := expected_uuid(self.device_type, rank)) is not None:
                self._lock.hold(uuid)
        job = self._job(cell, tolerance, candidates)
        job = job.model_copy(update={"beaten_before": beaten_before((one.record for one in self.store.load()), job)})
        out: LeftOut = {}
        done: list[ProcessRecord] = []
        deaths = kept = 0
        looked = fresh
        while True:
            job = job.model_copy(update={"process": len(done), "cold_compile": len(done) % 2 == 0})
            if done:
                p_max = self._p_max(done)
                if len(done) >= p_max or settled(done, p_max):
                    return Outcome(done, kept)
                out |= left_out(done, p_max)
                shared = {"pairs": done[0].pairs, "p_max": p_max, "sequence": done[0].sequence}
                job = job.model_copy(update=shared)
            job = job.model_copy(update={"left_out": dict(out)})
            late = self._late(cell, done, out)
            if late is not None and (looked or not self._any_stored(cell)):
                return Outcome(done, kept, left=late)
            result = self._process(job, look_in_store=not looked, late=late)
            looked = True
            if isinstance(result, _Late):
                return Outcome(done, kept, left=result)
            if isinstance(result, Death):
                # compile caches and logs lie there, and no arm is to blame for a full disk
                require_writable(self._logs, f"a process of {cell.name} died; what was measured before is kept.")
                deaths += 1
                self.progress.note(
                    f"{cell.name}: process {len(done)} died in {result.phase or 'start'}: {result.reason}"
                )
                if result.arm not in candidates or deaths > _MAX_DEATHS:
                    return Outcome(done, kept, f"{result.arm or 'the model'}: {result.reason}")
                out[result.arm] = (result.status, result.reason)
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
            if result.status is not RunStatus.MEASURED:
                on_record(result, Ahead(0, 0.0))
                return Outcome([*done, result], kept, f"process {result.process}: {result.status}: {result.reason}")
            done.append(result)
            on_record(result, ahead(done, self._p_max(done)))

    def _any_stored(self, cell: Cell) -> bool:
        """Whether the store holds a process of the cell: whether it fits here, only a started process can tell."""
        return any(of_cell(one.record, cell, self.device_type) for one in self.store.load(cell.op))

    def _late(self, cell: Cell, done: list[ProcessRecord], out: LeftOut) -> _Late | None:
        """Why the next process does not begin: the cell, or where it has begun the process, would not end in time."""
        here_s = self.until_s - monotonic()
        if done:
            needs_s, what = later_s(done[0], out, len(done)), f"process {len(done)}"
        else:
            stored = (one.record for one in self.store.load(cell.op))
            needs_s, what = cell_s(cell, stored, self.device_type, self.settings.budget_s), "it"
        if needs_s <= here_s:
            return None
        return _Late(f"{what} takes about {needs_s / 60:.1f} min and {max(here_s, 0) / 60:.1f} are left")

    def _p_max(self, done: list[ProcessRecord]) -> int:
        """Processes declared: what the budget and the time left allow by the costs of process 0, before process 1."""
        if len(done) > 1 and done[1].p_max is not None:
            return done[1].p_max
        first, out = done[0], refused(done[0])
        budget = Budget(self.settings.budget_s, later_start_s(first, out), later_pair_s(first, out))
        allowed = int(processes_in_budget(first.pairs, budget))
        if math.isfinite(self.until_s):
            here_s, mean_s = self.until_s - monotonic(), (later_s(first, out, 1) + later_s(first, out, 2)) / 2
            allowed = min(allowed, 1 + int(here_s / mean_s))
        return max(allowed, P_WIN)  # with fewer nothing could ever win

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
            ranks=workload.ranks,
            device_type=self.device_type,
            tolerance=tolerance,
            candidates=candidates,
            sequence=datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f"),
            process=0,
            cold_compile=True,
            pairs=None,
            p_max=None,
            checkpoint=self.checkpoint,
            lpips=self.lpips,
            settings=self.settings,
            extra=self.extra,
            broken=self.broken,
        )

    # -- one process -----------------------------------------------------------------------------------------------

    def _process(
        self, job: CellJob, *, look_in_store: bool, late: _Late | None
    ) -> ProcessRecord | list[ProcessRecord] | Death | _Late | str:
        """Run one process: its record; how it died; why the cell is refused; or the stored processes to go on from.

        `late` is returned where nothing is stored.
        """
        if job.cold_compile:
            shutil.rmtree(self._cache, ignore_errors=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"e2e-{job.op}-{job.workload}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}.log"
        environment = {**worker_environment(self._cache, self.device_type), **self._environment}
        line = worker_line("harness.e2e.worker", log, environment, from_cell, job.ranks)
        self._line = line
        try:
            line.send(job)
            hello = line.receive(monotonic() + _START_LIMIT_S)
            if not isinstance(hello, CellHello):
                raise UnfitError(f"the process did not start: {line.log_tail() or 'no output'} (log: {log})")
            for device in (hello.environment.device, *hello.peers):
                self._lock.hold(device.uuid)
            if look_in_store and (stored := self._stored(job, hello)):
                return stored
            if late is not None:
                return late
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
        here: list[list[ProcessRecord]] = []
        elsewhere: list[list[ProcessRecord]] = []
        for records in sequences.values():
            in_order = sorted(records, key=lambda record: record.process)
            # a gap would join processes that the rule never saw in this order
            if [record.process for record in in_order] == list(range(len(in_order))):
                own = _devices(in_order[0]) == tuple(one.uuid for one in (hello.environment.device, *hello.peers))
                (here if own else elsewhere).append(in_order)
        if self.any_card:
            here += [records for records in elsewhere if self._finished(records)]
        return max(here, key=lambda records: records[-1].started_at, default=[])

    def _finished(self, records: list[ProcessRecord]) -> bool:
        p_max = next((record.p_max for record in records if record.p_max is not None), None)
        return p_max is not None and (len(records) >= p_max or settled(records, p_max))

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
                return death_of(line, message, arm, phase)

    def _end(self) -> None:
        if self._line is not None:
            self._line.end()
            self._line = None


def _devices(record: ProcessRecord) -> tuple[str, ...]:
    """UUIDs by rank."""
    return record.ranks.devices if record.ranks is not None else (record.environment.device.uuid,)


def _same(record: ProcessRecord, job: CellJob, hello: CellHello) -> bool:
    """Whether the record is a process of the sequence that the job would start."""
    candidates = {arm.id for arm in record.arms if arm.role is ModelRole.CANDIDATE}
    ignored = {"git_sha", "device"}
    return (
        (record.workload, record.context) == (job.workload, job.context)
        and record.component == job.component
        and len(_devices(record)) == job.ranks
        and candidates == set(job.candidates)
        and record.seed == job.settings.seed
        and record.settings == job.settings.stored()
        and (record.checkpoint is None) == (job.checkpoint is None)
        and (record.e2e_sha256, record.wiring_sha256) == (hello.e2e_sha256, hello.wiring_sha256)
        and record.environment.device.key == hello.environment.device.key
        and record.environment.model_dump(exclude=ignored) == hello.environment.model_dump(exclude=ignored)
    )


def _drifted(record: ProcessRecord, cell: Cell) -> list[str]:
    """Upstream objects whose source has changed since the wiring was written. What it does is proved all the same:
    native through the wiring gives the model's own output, with as many calls."""
    return [name for name, pinned in cell.wiring.pinned.items() if record.upstream.get(name) != pinned]
