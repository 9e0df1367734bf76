"""How long the processes of a cell take: from what its earlier ones took, or from its first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.e2e.select import Cell
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import RunStatus
from harness.stats.rule import P_WIN

FIRST_ONLY = (ModelRole.CEILING, ModelRole.OPAQUE)
"""Roles that run in process 0 alone."""
_FIRST_ONLY_PHASES = ("shadow", "quality")
_UNKNOWN_SHARE = 1.25
"""Of the budget, where nothing is known yet: the checks of process 0 come on top of it."""


@dataclass(frozen=True)
class Ahead:
    """What a sequence has still to do if the rule does not end it before."""

    processes: int
    seconds: float


def took_s(record: ProcessRecord) -> float:
    """From the start of the program to its last kept block."""
    return record.start_s + record.pair_s * record.pairs


def later_start_s(first: ProcessRecord) -> float:
    """C0 of a later process, which lacks the checks of the first."""
    return max(first.start_s - sum(first.phases_s.get(name, 0.0) for name in _FIRST_ONLY_PHASES), 1.0)


def later_pair_s(first: ProcessRecord) -> float:
    """Seconds of one pair of every arm that later processes have."""
    later = sum(arm.id in first.timed_arms and arm.role not in FIRST_ONLY for arm in first.arms)
    return max(first.pair_s * later / max(len(first.timed_arms), 1), 1e-6)


def later_s(first: ProcessRecord) -> float:
    """One later process of the sequence."""
    return later_start_s(first) + later_pair_s(first) * first.pairs


def ahead(done: list[ProcessRecord], p_max: int) -> Ahead:
    """What is left after these processes."""
    processes = max(p_max - len(done), 0)
    return Ahead(processes, processes * later_s(done[0]))


def cell_s(cell: Cell, stored: Iterable[ProcessRecord], device_type: Literal["cuda", "cpu"], budget_s: float) -> float:
    """Seconds of the fewest processes that may win, by the newest first one on such a device, else by the budget."""
    firsts = [
        one
        for one in stored
        if (one.workload, one.component.id, one.context) == _identity(cell)
        and (one.process, one.status) == (0, RunStatus.MEASURED)
        and one.environment.device.type == device_type
    ]
    if not firsts:
        return _UNKNOWN_SHARE * budget_s
    newest = max(firsts, key=lambda one: one.started_at)
    return took_s(newest) + (P_WIN - 1) * later_s(newest)


def _identity(cell: Cell) -> tuple[str, str, str | None]:
    return cell.workload.workload, cell.component.id, cell.wiring.context
