"""Stage 1: from a manifest to lines in the store, for one op on the device that is here."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.device_lock import device_count, lacking
from harness.errors import UserError
from harness.isolate import Progress, Supervisor
from harness.paths import WORK_FOLDER
from harness.protocol import Hello, Job, Settings, Task, stored_settings
from harness.schema.manifest import Manifest
from harness.schema.measurement import DeviceRecord, Measurement
from harness.schema.vocabulary import ArmStatus, Role, RunStatus
from harness.store import Store, resume_key, summary_of

FAILED_ARMS = (ArmStatus.CRASHED, ArmStatus.TIMED_OUT, ArmStatus.OUT_OF_MEMORY)
"""Arms that broke; arms that the gate refused are findings, not failures of the run."""

SECONDS_PER_ARM = {"cuda": 2.0, "cpu": 0.2}
"""Default sampling budget. A rehearsal shows the way and decides nothing, so it is short."""


@dataclass(frozen=True)
class Selection:
    """What to measure of an op."""

    cases: tuple[str, ...] = ()
    """Globs on case ids; none means all."""
    context: str | None = None
    """Only this context; None means the op alone and all its contexts."""
    ranks: int | None = None
    """Only cases of so many ranks; None means all."""


@dataclass
class Outcome:
    """What one op's run did."""

    measured: list[Measurement]
    kept: int
    """Comparisons that were in the store already."""
    problems: tuple[str, ...]
    runnable: bool = True
    """Whether this machine has the devices for any of it; `problems` says what it lacks."""

    @property
    def failures(self) -> list[str]:
        """One sentence per comparison or arm that broke."""
        sentences = []
        for measurement in self.measured:
            where = f"{measurement.op}/{measurement.case.id}" + (
                f" [{measurement.context}]" if measurement.context else ""
            )
            if measurement.status is not RunStatus.MEASURED:
                sentences.append(f"{where}: {measurement.status}: {measurement.reason}")
            sentences += [
                f"{where}: {arm.id}: {arm.status}: {arm.reason}"
                for arm in measurement.arms
                if arm.status in FAILED_ARMS
            ]
        return sentences


def _superseded(store: Store, found: Measurement) -> bool:
    """Whether reports show another measurement of the same on this card, one of other candidates."""

    def candidates(of: Measurement) -> set[str]:
        return {arm.id for arm in of.arms if arm.role is Role.CANDIDATE}

    def slot(of: Measurement) -> tuple[str, str | None, DeviceRecord]:
        return of.case.content, of.context, of.environment.device

    precedence = summary_of(found).precedence
    return any(
        one.status is RunStatus.MEASURED
        and summary_of(one).precedence > precedence
        and slot(one) == slot(found)
        and candidates(one) != candidates(found)
        for one in (stored.measurement for stored in store.load(found.op))
    )


def tasks_of(manifest: Manifest, device_type: str, selection: Selection) -> tuple[Task, ...]:
    """The comparisons to make, those of deciding models first, else in file order.

    A run that is cut short has then measured what decides. A shape that two models share is measured once.

    On a CPU the cases are their small twins. Raises UserError when a glob or the context matches nothing at all.
    """
    for pattern in selection.cases:
        if not any(fnmatch.fnmatchcase(case.id, pattern) for case in manifest.cases):
            ids = ", ".join(case.id for case in manifest.cases[:6])
            raise UserError(f"--case {pattern!r} matches no case of {manifest.op}; there are {ids}, ...")
    contexts = {context for case in manifest.cases for context in case.contexts}
    if selection.context is not None and selection.context not in contexts:
        raise UserError(
            f"--context {selection.context!r} is in no case of {manifest.op}; "
            f"there are {', '.join(sorted(contexts)) or 'none'}."
        )
    counts = sorted({case.ranks for case in manifest.cases})
    if selection.ranks is not None and selection.ranks not in counts:
        known = ", ".join(map(str, counts))
        raise UserError(f"--ranks {selection.ranks}: no case of {manifest.op} has so many; there are {known}.")
    tasks: dict[tuple[str, str | None], Task] = {}
    for case in sorted(manifest.cases, key=lambda case: case.model not in manifest.deciding_models):
        if selection.cases and not any(fnmatch.fnmatchcase(case.id, pattern) for pattern in selection.cases):
            continue
        if selection.ranks not in (None, case.ranks):
            continue
        wanted: list[str | None] = [None, *case.contexts]
        if selection.context is not None:
            wanted = [context for context in case.contexts if context == selection.context]
        measured = case if device_type == "cuda" else case.rehearsed()
        for context in wanted:
            tasks.setdefault((measured.content, context), Task(case=measured, context=context))
    return tuple(tasks.values())


def bench(
    manifest: Manifest,
    root: Path,
    store: Store,
    device_type: Literal["cuda", "cpu"],
    *,
    selection: Selection,
    settings: Settings,
    extra: Sequence[str],
    broken: Mapping[str, str],
    fresh: bool,
    progress: Progress,
    on_measured: Callable[[Measurement], None],
    on_planned: Callable[[int, int], None],
) -> Outcome:
    """Measure what the store does not hold yet (everything when `fresh`), appending each result as it comes.

    `broken` is what must not be imported, from `harness.survey`. Cases of one number of ranks after those of another:
    each has workers of its own. `on_planned(to_measure, kept)` is called with the sums so far before each, and
    `on_measured` after each stored line. Raises UserError for a bad selection and UnfitError when the clock's controls
    fail or the device is taken; cases of more ranks than there are devices become one of the outcome's problems. Ctrl-C
    leaves what is stored.
    """
    groups: dict[int, list[Task]] = {}
    for task in tasks_of(manifest, device_type, selection):
        groups.setdefault(task.case.ranks, []).append(task)
    here = device_count(device_type)
    problems: dict[str, None] = {}
    measured: list[Measurement] = []
    to_measure = kept = 0
    for ranks, tasks in sorted(groups.items()):
        if ranks > here:
            problems[lacking(f"{manifest.op}: cases", device_type, ranks, here, len(tasks))] = None
            continue
        job = Job(
            root=str(root),
            op=manifest.op,
            device_type=device_type,
            tolerance=manifest.tolerance,
            tasks=tuple(tasks),
            settings=settings,
            extra=tuple(extra),
            broken=dict(broken),
        )
        with Supervisor(job, root / WORK_FOLDER, progress) as supervisor:
            hello = supervisor.hello()
            pending = [task for index, task in enumerate(tasks) if fresh or not _stored(store, job, hello, index)]
            to_measure, kept = to_measure + len(pending), kept + len(tasks) - len(pending)
            on_planned(to_measure, kept)
            for measurement in supervisor.run(supervisor.build_ahead(pending)):
                store.append(measurement)
                measured.append(measurement)
                on_measured(measurement)
        problems |= dict.fromkeys(hello.problems)
    return Outcome(measured, kept, tuple(problems), runnable=any(ranks <= here for ranks in groups))


def _stored(store: Store, job: Job, hello: Hello, index: int) -> bool:
    task = job.tasks[index]
    key = resume_key(
        job.op,
        task.case,
        task.context,
        hello.environment,
        hello.identities[index],
        stored_settings(job.settings),
    )
    found = store.find(key, job.op)
    if found is None or _superseded(store, found.measurement):
        return False
    # Cross-checks only add to a measurement: one that has them also answers a run without.
    checked = any(arm.do_bench_us is not None for arm in found.measurement.arms)
    return checked or not job.settings.cross_checks or job.device_type == "cpu"
