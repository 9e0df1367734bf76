"""What there is to measure on one card, with what its evidence says of it: the works of `harness.nightly.plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from harness.device_lock import device_count, lacking
from harness.e2e.order import FILE as ORDER_FILE
from harness.e2e.order import load_order
from harness.errors import UserError
from harness.line_index import FOLDER as INDEX_FOLDER
from harness.line_index import IndexedLine, indexed
from harness.microbench import Selection, tasks_of
from harness.nightly.estimates import Cost, Estimates
from harness.nightly.plan import State, Work
from harness.nightly.record import Ended, Night, Stage
from harness.paths import WORK_FOLDER
from harness.protocol import Task
from harness.schema.case import Case, Confidence
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.manifest import Manifest
from harness.schema.workload import load_workloads
from harness.store import Line, ProcessStore
from harness.verdict import present
from harness.verdict.compare import why_invalid
from harness.verdict.select import CardKey, Chosen, Slot, choose

NEWEST = 3
"""Measurements of one comparison that its estimate is made of."""


@dataclass(frozen=True)
class Card:
    """One card below one project root."""

    root: Path
    uuid: str
    device_type: Literal["cuda", "cpu"]
    manifests: Mapping[str, Manifest]
    """Of the ops that can be measured here, in the matrix's order."""
    broken: Mapping[str, str] = field(default_factory=dict)
    """What must not be imported, from `harness.survey`."""

    def lines(self) -> list[IndexedLine]:
        """The store's lines; their samples are read for those that are asked for them."""
        return indexed(self.root / "results", self.root / WORK_FOLDER / INDEX_FOLDER)

    def estimates(self) -> Estimates:
        """From the newest measurements of each comparison, on whatever card of this type."""
        alike: dict[tuple[str, str, str | None], list[IndexedLine]] = {}
        for line in self.lines():
            of = line.summary
            if of.device_type == self.device_type:
                alike.setdefault((of.op, of.content, of.context), []).append(line)
        newest = (sorted(lines, key=lambda line: line.summary.started_at)[-NEWEST:] for lines in alike.values())
        return Estimates.from_measurements((line.measurement for lines in newest for line in lines), self.device_type)

    def comparisons(self, night: Night, estimates: Estimates) -> list[Work]:
        """Every case of every op that the night has not measured on the card yet, in the matrix's order."""
        now = present(self.root, self.manifests)
        lines = self.lines()
        works = []
        for op, manifest in self.manifests.items():
            of_op = [line for line in lines if line.summary.op == op]
            slots = _of_card(choose(of_op, manifest, now), of_op, self.uuid)
            tonight = _tonight(of_op, self.uuid, night.since)
            began = bool(_cut(night, Stage.MICROBENCH, op))
            by_case: dict[str, list[tuple[Case, str | None, Cost]]] = {}
            for task in self._tasks(manifest):
                if (task.case.content, task.context) not in tonight:
                    part = (task.case, task.context, estimates.of_task(op, task))
                    by_case.setdefault(task.case.id, []).append(part)
            works += [_case(manifest, case_id, parts, slots, began) for case_id, parts in by_case.items()]
        return works

    def _tasks(self, manifest: Manifest) -> list[Task]:
        """Comparisons of no more ranks than there are devices."""
        here = device_count(self.device_type)
        return [task for task in tasks_of(manifest, self.device_type, Selection()) if task.case.ranks <= here]

    def lacking(self) -> list[tuple[str, int, int]]:
        """Op, ranks and how many of its cases need more devices than there are here."""
        here = device_count(self.device_type)
        counts = Counter((op, case.ranks) for op, of in self.manifests.items() for case in of.cases)
        return [(op, ranks, count) for (op, ranks), count in counts.items() if ranks > here]

    def cells(self, night: Night, budget_s: float) -> tuple[list[Work], list[str]]:
        """Every `workload/component` in which an op is wired and that the night has not finished on the card yet.

        They come in the project's order of evidence. The second value says, a sentence each, which ops' wirings cannot
        be read, and which cells need more devices than there are here.
        """
        from harness import catalog  # imports candidates, and so torch
        from harness.e2e.eta import cell_s
        from harness.e2e.select import Cell, cells_of, matches
        from harness.e2e.wirings import wirings_of
        from harness.report import recompute_ops

        workloads = load_workloads(self.root / "shapes" / "workloads")
        order = load_order(self.root) if (self.root / ORDER_FILE).is_file() else ()
        devices = device_count(self.device_type)
        works: list[tuple[int, Work]] = []
        problems: list[str] = []
        for op, manifest in self.manifests.items():
            try:
                catalog.load(op, self.root, broken=self.broken)
                found = cells_of(op, workloads, ()) if wirings_of(op) else ()
            except UserError as error:
                problems.append(str(error))
                continue
            short = Counter(one.workload.ranks for one in found if one.workload.ranks > devices)
            problems += [
                lacking(f"{op}: cells", self.device_type, ranks, devices, count) for ranks, count in short.items()
            ]
            found = tuple(one for one in found if one.workload.ranks <= devices)
            ended = _ended(night, op)
            cells: dict[str, list[Cell]] = {}
            for one in found:
                cells.setdefault(f"{one.workload.workload}/{one.component.id}", []).append(one)
            rows = recompute_ops(self.root, [op]).rows if cells else ()
            verdicts = [cell for row in rows for cell in row.cells if cell.device.uuid == self.uuid]
            records = [one.record for one in ProcessStore(self.root / "results").load(op)]
            for name, wired in cells.items():
                if name in ended:
                    continue
                here = [
                    one.started_at
                    for one in records
                    if f"{one.workload}/{one.component.id}" == name and one.environment.device.uuid == self.uuid
                ]
                work = Work(
                    op=op,
                    id=name,
                    state=_cell_state([one for one in verdicts if f"{one.workload}/{one.component}" == name]),
                    decides=name.split("/")[0] in manifest.deciding_models,
                    costs=tuple(Cost(cell_s(cell, records, self.device_type, budget_s)) for cell in wired),
                    last=max(here, default=""),
                    began=name in _cut(night, Stage.E2E, op),
                )
                places = [n for n, entry in enumerate(order) if entry.op == op and matches(wired[0], entry.model)]
                works.append((min(places, default=len(order)), work))
        return [work for _, work in sorted(works, key=lambda placed: placed[0])], problems


def _case(
    manifest: Manifest,
    case_id: str,
    parts: Sequence[tuple[Case, str | None, Cost]],
    slots: Mapping[Slot, Chosen],
    began: bool,
) -> Work:
    found = [slots[case_id, context] for _, context, _ in parts if (case_id, context) in slots]
    states = [_state(slots.get((case_id, context))) for _, context, _ in parts]
    return Work(
        op=manifest.op,
        id=case_id,
        state=min(states, key=list(State).index),
        decides=parts[0][0].model in manifest.deciding_models and parts[0][0].confidence is not Confidence.MEMORY,
        costs=tuple(cost for _, _, cost in parts),
        last=min((one.stored.measurement.started_at for one in found), default=""),
        began=began,
    )


def _of_card(cards: Mapping[CardKey, dict[Slot, Chosen]], lines: Iterable[Line], uuid: str) -> dict[Slot, Chosen]:
    """The evidence of this card; of a card that has changed its driver, that with the newest."""
    here = [of for line in lines if (of := line.summary).device_uuid == uuid]
    newest = max(here, key=lambda of: of.started_at, default=None)
    return cards.get((newest.device_key, uuid), {}) if newest is not None else {}


def _state(chosen: Chosen | None) -> State:
    if chosen is None:
        return State.NEVER
    if chosen.staleness.reasons or chosen.staleness.case_changed:
        return State.STALE
    return State.INVALID if why_invalid(chosen.stored.measurement) else State.MEASURED


def _cell_state(verdicts: Sequence[CellVerdict]) -> State:
    """Of a cell's wirings together, the worst."""
    if not verdicts:
        return State.NEVER
    if any(one.stale for one in verdicts):
        return State.STALE
    return State.INVALID if any(one.reason for one in verdicts) else State.MEASURED


def _tonight(lines: Iterable[Line], uuid: str, since: datetime) -> set[tuple[str, str | None]]:
    """Shapes and contexts that were measured on the card since, whatever came of it: nothing is tried twice a night."""
    return {
        (of.content, of.context)
        for line in lines
        if (of := line.summary).device_uuid == uuid and datetime.fromisoformat(of.started_at) >= since
    }


def _cut(night: Night, stage: Stage, op: str) -> set[str]:
    return {piece.what for piece in night.pieces if (piece.stage, piece.op, piece.ended) == (stage, op, Ended.CUT)}


def _ended(night: Night, op: str) -> set[str]:
    """Cells that need nothing more tonight."""
    return {
        piece.what
        for piece in night.pieces
        if (piece.stage, piece.op) == (Stage.E2E, op) and piece.ended in (Ended.DONE, Ended.FAILED)
    }
