"""How long the processes of a cell take: from what its earlier ones took, or from its first."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Literal

from harness.e2e.select import Cell
from harness.e2e.stopping import left_out, refused
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import RunStatus
from harness.stats.rule import P_WIN

FIRST_ONLY = (ModelRole.CEILING, ModelRole.OPAQUE)
"""Roles that run in process 0 alone."""
FIRST_ONLY_PHASES = ("shadow", "quality", "baselines")
"""Phases likewise."""
_WARM_SHARE = 0.3
"""Of a cold compile, what one from kept caches is reckoned at: on an H200 3.2 s where 38 were, in one process."""
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


def later_start_s(first: ProcessRecord, out: Container[str], *, warm: bool = False) -> float:
    """C0 of a later process, which lacks the checks of the first and the compiles of what it leaves `out`; `warm`: its
    compile caches are those of the one before."""
    checks_s = sum(first.phases_s.get(name, 0.0) for name in FIRST_ONLY_PHASES)
    lacked_s = sum(arm.compile_s for arm in first.arms if not _later(arm, out))
    kept_s = sum(arm.compile_s for arm in first.arms if _later(arm, out))
    spared_s = lacked_s + (1 - _WARM_SHARE) * kept_s if warm else lacked_s
    return max(first.start_s - checks_s - spared_s, 1.0)


def later_pair_s(first: ProcessRecord, out: Container[str]) -> float:
    """Seconds of one pair of every arm that later processes have."""
    later = sum(arm.id in first.timed_arms and _later(arm, out) for arm in first.arms)
    return max(first.pair_s * later / max(len(first.timed_arms), 1), 1e-6)


def later_s(first: ProcessRecord, out: Container[str], process: int) -> float:
    """One later process of the sequence; odd ones find the compile caches of the one before."""
    return later_start_s(first, out, warm=process % 2 == 1) + later_pair_s(first, out) * first.pairs


def _later(arm: ModelArmRecord, out: Container[str]) -> bool:
    """Whether processes that leave `out` these build the arm of process 0."""
    return arm.role not in FIRST_ONLY and arm.id not in out


def ahead(done: list[ProcessRecord], p_max: int) -> Ahead:
    """What is left after these processes."""
    out, processes = left_out(done, p_max), range(len(done), p_max)
    return Ahead(len(processes), sum(later_s(done[0], out, process) for process in processes))


def cell_s(cell: Cell, stored: Iterable[ProcessRecord], device_type: Literal["cuda", "cpu"], budget_s: float) -> float:
    """Seconds of the fewest processes that may win, by the newest first one on such a device, else by the budget."""
    firsts = [
        one
        for one in stored
        if of_cell(one, cell, device_type) and (one.process, one.status) == (0, RunStatus.MEASURED)
    ]
    if not firsts:
        return _UNKNOWN_SHARE * budget_s
    newest = max(firsts, key=lambda one: one.started_at)
    return took_s(newest) + sum(later_s(newest, refused(newest), process) for process in range(1, P_WIN))


def of_cell(record: ProcessRecord, cell: Cell, device_type: Literal["cuda", "cpu"]) -> bool:
    """Whether the record is a process of that cell, on any device of the type."""
    asked = cell.workload.workload, cell.component.id, cell.wiring.context, device_type
    return (record.workload, record.component.id, record.context, record.environment.device.type) == asked
