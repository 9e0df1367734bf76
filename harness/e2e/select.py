"""Which cells there are, and which candidates each takes: the leading one of each kind by the stored µbench."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.e2e.wirings import wirings_of
from harness.errors import UserError
from harness.op import Candidate
from harness.schema.verdict import CardVerdict, Comparison, RowVerdict
from harness.schema.vocabulary import Kind
from harness.schema.workload import Component, Workload
from harness.wiring import Wiring

COMPETING = (Kind.REWRITE, Kind.TRITON, Kind.CUDA)


@dataclass(frozen=True)
class Cell:
    """One op, alone or with the neighbours its wiring takes along, in one component of one workload."""

    op: str
    workload: Workload
    component: Component
    wiring: Wiring

    @property
    def name(self) -> str:
        """As on the command line and in reports."""
        op = self.op if self.wiring.context is None else f"{self.op} ({self.wiring.context})"
        return f"{op} in {self.workload.workload}/{self.component.id}"


def cells_of(op: str, workloads: Mapping[str, Workload], models: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of an op, in the order of the workloads' files; `models` are globs on `workload/component`.

    Without a glob the stand-ins (fewer layers) stand in for what they stand for. Raises UserError for a glob that
    matches nothing and for an op without wirings.
    """
    wirings = wirings_of(op)
    if not wirings:
        raise UserError(
            f"candidates/{op}/ has no wiring.py with WIRINGS: nothing says where {op} is called in a model."
        )
    cells = [
        Cell(op, workload, component, wiring)
        for workload in workloads.values()
        for component in workload.components
        for wiring in wirings
        if wiring.family == workload.family
    ]
    for pattern in models:
        if not any(matches(cell, pattern) for cell in cells):
            known = ", ".join(dict.fromkeys(f"{cell.workload.workload}/{cell.component.id}" for cell in cells))
            raise UserError(f"--model {pattern!r} matches no component with {op}; there are {known}.")
    if models:
        return tuple(cell for cell in cells if any(matches(cell, pattern) for pattern in models))
    replaced = {(cell.workload.workload, cell.component.stands_for) for cell in cells}
    return tuple(cell for cell in cells if (cell.workload.workload, cell.component.id) not in replaced)


def matches(cell: Cell, pattern: str) -> bool:
    """Whether the glob is of the cell's workload, or of its `workload/component`."""
    name = f"{cell.workload.workload}/{cell.component.id}"
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(cell.workload.workload, pattern)


def fits(candidate: Candidate, cell: Cell) -> bool:
    """Whether the cell's wiring can call it: it does the op alone, or what the wiring takes along."""
    return candidate.context in (None, cell.wiring.context)


def leaders(
    row: RowVerdict | None, cell: Cell, candidates: Iterable[Candidate], device_type: Literal["cuda", "cpu"]
) -> tuple[str, ...]:
    """The leading candidate of each kind, on the cell's model, by the µbench evidence of a card of this device type.

    Where the evidence has nothing on a kind, its first candidate in the catalog's order. On a CPU every rewrite and
    the in-house kernels: they are checked there, and only rewrites are timed.
    """
    fitting = [one for one in candidates if one.kind in COMPETING and fits(one, cell)]
    if cell.wiring.context is not None and any(one.context is not None for one in fitting):
        fitting = [one for one in fitting if one.context is not None or one.kind is Kind.REWRITE]
    if device_type == "cpu":
        return tuple(one.id for one in fitting if one.kind is Kind.REWRITE or one.provider.id == "inhouse")
    card = row.cards[0] if row is not None and row.cards else None
    scores = _scores(card, cell) if card is not None else {}
    chosen = []
    for kind in COMPETING:
        of_kind = [one for one in fitting if one.kind is kind and one.provider.missing() is None]
        if of_kind:
            chosen.append(max(of_kind, key=lambda one: scores.get(one.id, -math.inf)).id)
    return tuple(chosen)


def _scores(card: CardVerdict, cell: Cell) -> dict[str, float]:
    """By candidate, its mean log-ratio to the baseline over the model's cases, weighted by calls and baseline time.

    A case it was not timed on counts as the baseline.
    """
    comparisons = [
        one
        for one in card.comparisons
        if one.case.model == cell.workload.workload and one.context == cell.wiring.context and not one.invalid
    ] or [one for one in card.comparisons if one.context is None and not one.invalid]
    total = sum(_weight(one) for one in comparisons)
    scores: dict[str, float] = {}
    for one in comparisons:
        for arm in one.candidates:
            if arm.effect_log_pct is not None and arm.kind in COMPETING:
                share = _weight(one) / total * arm.effect_log_pct.estimate
                scores[arm.id] = scores.get(arm.id, 0.0) + share
    return scores


def _weight(one: Comparison) -> float:
    baseline = one.baseline
    return one.case.calls * (
        baseline.time_us.estimate if baseline is not None and baseline.time_us is not None else 0.0
    )
