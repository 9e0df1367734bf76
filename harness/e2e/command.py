"""`harness e2e`: which cells, with which candidates, one after another; what was measured is decided and printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness import catalog
from harness.e2e.protocol import CellSettings
from harness.e2e.runner import CellRunner
from harness.e2e.select import Cell, cells_of, leaders
from harness.errors import UserError
from harness.microbench import WORK_FOLDER, require_writable
from harness.op import Candidate
from harness.progress import LiveProgress
from harness.report import recompute_ops, refresh
from harness.report.e2e import gain
from harness.schema.manifest import Manifest, load_manifest
from harness.schema.process import ProcessRecord
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import ArmStatus
from harness.schema.workload import load_workloads
from harness.store import ProcessStore


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


def run(request: Request, root: Path, out: Console, err: Console) -> list[str]:
    """Measure every cell asked for; one sentence for each that could not be finished.

    Raises UserError before anything runs for an op, a model or an arm there is not, UnfitError where nothing can be
    measured; Ctrl-C keeps what is stored.
    """
    planned = [plan for op in request.ops for plan in _plans(op, request, root)]
    require_writable(root)
    failures: list[str] = []
    try:
        for number, (cell, manifest, candidates) in enumerate(planned, start=1):
            with (
                LiveProgress(err, f"[{number}/{len(planned)}] {cell.name}") as progress,
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
                ) as runner,
            ):
                err.print(f"{cell.name}: {', '.join(candidates) or 'no candidate'}", highlight=False)
                outcome = runner.run(
                    cell,
                    manifest.tolerance,
                    candidates,
                    fresh=request.fresh,
                    on_record=lambda record: err.print(f"  {line_of(record)}", highlight=False),
                )
                if outcome.kept:
                    err.print(f"  {outcome.kept} processes were in results/ already (--fresh starts over)")
                if outcome.failure:
                    failures.append(f"{cell.name}: {outcome.failure}")
    finally:
        # Also after Ctrl-C: what is stored is decided and printed.
        verdicts, problems = refresh(root, request.ops)
        out.print(outcome_table(verdicts, request.ops, request.device_type))
    return [*failures, *problems]


def _plans(op: str, request: Request, root: Path) -> list[tuple[Cell, Manifest, tuple[str, ...]]]:
    manifest = load_manifest(root / "shapes" / f"{op}.yaml")
    entry = catalog.load(op, root, request.extra, broken=request.broken)
    workloads = load_workloads(root / "shapes" / "workloads")
    (row,) = recompute_ops(root, [op]).rows
    plans = []
    for cell in cells_of(op, workloads, request.models):
        chosen = request.arms or leaders(row, cell, entry.candidates, request.device_type)
        _require_known(op, chosen, entry.candidates)
        plans.append((cell, manifest, chosen))
    return plans


def _require_known(op: str, chosen: tuple[str, ...], candidates: tuple[Candidate, ...]) -> None:
    known = [candidate.id for candidate in candidates]
    for arm in chosen:
        if arm not in known:
            raise UserError(f"--arm {arm}: {op} has no such candidate; choose from {', '.join(known)}.")


def line_of(record: ProcessRecord) -> str:
    """One line for a finished process."""
    broken = [f"{arm.id} {arm.status}" for arm in record.arms if arm.status not in (ArmStatus.OK, ArmStatus.REHEARSED)]
    seconds = sum(record.phases_s.values())
    said = f"process {record.process}: {record.pairs} pairs of {len(record.timed_arms)} arms ({seconds:.0f} s)"
    return escape(said + (f"; {', '.join(broken)}" if broken else ""))


def outcome_table(verdicts: Verdicts, ops: tuple[str, ...], device_type: str) -> Table:
    """Every cell of these ops on the device's kind, newest sequence."""
    table = Table(title="end to end", title_justify="left", title_style="bold")
    for column in ("op", "model", "ceiling", "arm", "gain of the component", "verdict"):
        table.add_column(column, overflow="fold")
    for row in verdicts.rows:
        for cell in row.cells:
            if cell.op not in ops or cell.device.type != device_type:
                continue
            arms = [*([cell.twin] if cell.twin is not None else []), *cell.candidates]
            if not arms:
                table.add_row(cell.op, f"{cell.workload}/{cell.component}", "", "", "", f"{cell.verdict} {cell.reason}")
            for index, arm in enumerate(arms):
                first = index == 0
                table.add_row(
                    cell.op if first else "",
                    f"{cell.workload}/{cell.component}" if first else "",
                    gain(cell.ceiling_pct) if first else "",
                    arm.id,
                    gain(arm.gain_pct),
                    str(arm.verdict) + (f" {escape(arm.reason)}" if arm.reason else ""),
                )
    return table
