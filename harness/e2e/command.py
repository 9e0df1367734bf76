"""`harness e2e`: which cells, with which candidates, one after another; what was measured is decided and printed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Literal

from rich.console import Console
from rich.markup import escape

from harness import catalog
from harness.device_lock import device_count, lacking
from harness.e2e.eta import Ahead, took_s
from harness.e2e.order import Entry
from harness.e2e.outcome import outcomes
from harness.e2e.progress import CellProgress
from harness.e2e.protocol import DEFAULT_BUDGET_S, CellSettings
from harness.e2e.runner import CellRunner
from harness.e2e.select import Cell, cells_of, fits, leaders, matches
from harness.e2e.wirings import wirings_of
from harness.errors import UserError
from harness.op import Candidate
from harness.paths import WORK_FOLDER, require_places
from harness.report import recompute_ops, refresh
from harness.schema.manifest import Manifest, load_manifest
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus
from harness.schema.workload import load_workloads
from harness.store import ProcessStore

Plan = tuple[Cell, Manifest, tuple[str, ...]]
"""A cell, its op's manifest, and the ids of the candidates that are wired in."""


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    ops: tuple[str, ...]
    models: tuple[str, ...]
    device_type: Literal["cuda", "cpu"]
    settings: CellSettings
    fresh: bool
    arms: tuple[str, ...]
    checkpoint: str | None
    extra: tuple[str, ...]
    broken: Mapping[str, str]
    """What must not be imported, from `harness.survey`."""
    order: tuple[Entry, ...] = ()
    """Instead of all cells of the ops: these, first things first, but those that another card of the kind has
    finished."""
    minutes: float | None = None
    """Nothing begins that would not end within so many minutes; None is no limit."""
    lpips: str | None = None


@dataclass(frozen=True)
class Ran:
    """What came of a request, a sentence for each cell."""

    failures: list[str]
    """Could not be finished, or could not be decided."""
    left: list[str]
    """Not begun or not finished for lack of time."""
    lacking: list[str] = field(default_factory=list)
    """Not run for lack of devices."""
    runnable: bool = True
    """Whether this machine has the devices for any of it."""


def checked(root: Path, ops: tuple[str, ...], checkpoint: str | None, lpips: str | None) -> None:
    """Raises UserError for an op without a manifest and for folders that are not there, before anything is run."""
    known = sorted(path.stem for path in (root / "shapes").glob("*.yaml"))
    for op in ops:
        if op not in known:
            raise UserError(
                f"there is no manifest shapes/{op}.yaml; the ops with one are {', '.join(known) or 'none'}."
            )
    if checkpoint is not None and not Path(checkpoint).is_dir():
        raise UserError(f"--checkpoint {checkpoint}: there is no such folder.")
    if lpips is not None:
        if checkpoint is None:
            raise UserError("--lpips: on random weights it says nothing; give a --checkpoint as well.")
        from harness.e2e.quality import lpips_from

        lpips_from(lpips)


def run(request: Request, root: Path, out: Console, err: Console) -> Ran:
    """Measure every cell asked for.

    Raises UserError before anything runs for an op, a model or an arm there is not, UnfitError where nothing can be
    measured; Ctrl-C keeps what is stored.
    """
    until_s = monotonic() + 60 * request.minutes if request.minutes is not None else math.inf
    plans, needs = _with_devices(planned(request, root), request.device_type)
    require_places(root)
    ran = Ran([], [], needs, runnable=bool(plans) or not needs)
    try:
        for number, (cell, manifest, candidates) in enumerate(plans, start=1):
            with (
                CellProgress(err, f"[{number}/{len(plans)}] {cell.name}") as progress,
                CellRunner(
                    root,
                    root / WORK_FOLDER,
                    ProcessStore(root / "results"),
                    request.device_type,
                    request.settings,
                    progress,
                    extra=request.extra,
                    broken=request.broken,
                    checkpoint=request.checkpoint,
                    lpips=request.lpips,
                    until_s=until_s,
                    any_card=bool(request.order),
                ) as runner,
            ):
                what = ", ".join(candidates) or "no candidate"
                err.print(f"[{number}/{len(plans)}] {cell.name}: {what}", highlight=False, markup=False)

                def on_record(record: ProcessRecord, ahead: Ahead, progress: CellProgress = progress) -> None:
                    progress.processes(record.process + 1, ahead)
                    err.print(f"  {line_of(record, ahead)}", highlight=False)

                outcome = runner.run(
                    cell,
                    manifest.tolerance,
                    candidates,
                    fresh=request.fresh,
                    on_record=on_record,
                )
                if outcome.kept:
                    err.print(f"  {outcome.kept} processes were in results/ already (--fresh starts over)")
                if outcome.left:
                    ran.left.append(f"{cell.name}: {outcome.left}; `{_again(cell, request)}`")
                if outcome.failure:
                    ran.failures.append(f"{cell.name}: {outcome.failure}")
    finally:
        # Also after Ctrl-C: what is stored is decided and printed.
        verdicts, problems = refresh(root, request.ops)
        for table in outcomes(verdicts, request.ops, request.device_type):
            out.print(table)
    ran.failures.extend(problems)
    return ran


def _with_devices(plans: list[Plan], device_type: str) -> tuple[list[Plan], list[str]]:
    """The plans that there are devices for, and what the others need, a sentence for each op and number of ranks."""
    here = device_count(device_type)
    needs = Counter((cell.op, cell.workload.ranks) for cell, _, _ in plans if cell.workload.ranks > here)
    sentences = [
        lacking(f"{op}: cells", device_type, ranks, here, count) for (op, ranks), count in sorted(needs.items())
    ]
    return [plan for plan in plans if plan[0].workload.ranks <= here], sentences


def _again(cell: Cell, request: Request) -> str:
    """The command that measures the cell alone."""
    budget_s = request.settings.budget_s
    budget = "" if budget_s == DEFAULT_BUDGET_S else f" --budget {budget_s:g}"
    return f"harness e2e {cell.op} --model {cell.workload.workload}/{cell.component.id}{budget}"


def planned(request: Request, root: Path) -> list[Plan]:
    """The cells asked for, in the order they are measured. Raises UserError for one there is not."""
    plans = {op: _plans(op, request, root) for op in request.ops}
    if not request.order:
        return [plan for of_op in plans.values() for plan in of_op]
    return [
        plan
        for entry in request.order
        for plan in plans[entry.op]
        if matches(plan[0], entry.model) and (not request.models or any(matches(plan[0], m) for m in request.models))
    ]


def _plans(op: str, request: Request, root: Path) -> list[Plan]:
    manifest = load_manifest(root / "shapes" / f"{op}.yaml")
    entry = catalog.load(op, root, request.extra, broken=request.broken)
    workloads = load_workloads(root / "shapes" / "workloads")
    (row,) = recompute_ops(root, [op]).rows
    plans = []
    models = [entry.model for entry in request.order if entry.op == op] or request.models
    cells = cells_of(op, workloads, models)
    if not cells:
        families = ", ".join(sorted({wiring.family for wiring in wirings_of(op)}))
        raise UserError(
            f"{op} is wired into {families}, of which shapes/workloads/ has no model; add one or name another op."
        )
    asked = _asked(op, request.arms, entry.candidates)
    for cell in cells:
        chosen = tuple(one.id for one in asked if fits(one, cell))
        if not asked:
            chosen = leaders(row, cell, entry.candidates, request.device_type)
        elif not chosen:  # a cell of another context than what was asked for
            continue
        plans.append((cell, manifest, chosen))
    if not plans:
        arms = ", ".join(f"{one.id} (context {one.context})" for one in asked)
        raise UserError(f"--arm: no wiring of {op} in the models asked for calls {arms}; leave --model or --arm out.")
    return plans


def _asked(op: str, arms: tuple[str, ...], candidates: tuple[Candidate, ...]) -> list[Candidate]:
    known = {candidate.id: candidate for candidate in candidates}
    for arm in arms:
        if arm not in known:
            raise UserError(f"--arm {arm}: {op} has no such candidate; choose from {', '.join(known)}.")
    return [known[arm] for arm in arms]


def line_of(record: ProcessRecord, ahead: Ahead) -> str:
    """One line for a finished process, with what may follow."""
    broken = [f"{arm.id} {arm.status}" for arm in record.arms if arm.status not in (ArmStatus.OK, ArmStatus.REHEARSED)]
    seconds = took_s(record)
    said = f"process {record.process}: {record.pairs} pairs of {len(record.timed_arms)} arms ({seconds:.0f} s)"
    said += f"; {', '.join(broken)}" if broken else ""
    return escape(said + (f"; at most {ahead.processes} more, {ahead.seconds / 60:.1f} min" if ahead.processes else ""))
