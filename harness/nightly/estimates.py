"""How long a comparison will take, from what the store says of earlier ones. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from harness.prebuild import LIMIT_S as BUILD_LIMIT_S
from harness.prebuild import MAX_BUILDERS
from harness.protocol import Task
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import RunStatus

START_S = {"cuda": 20.0, "cpu": 12.0}
"""A worker's start, its controls and the first comparison's set-up."""
UNKNOWN_S = {"cuda": 12.0, "cpu": 20.0}
"""A comparison of which nothing like it was ever measured."""
MARGIN = 1.15
"""Estimates are medians: half of what they are made of took longer."""
_BUILT_AHEAD = "built ahead"


@dataclass(frozen=True)
class Cost:
    """Of one comparison."""

    measure_s: float
    build_s: float = 0.0
    """Compiling ahead, all arms one after another; builders share it."""


@dataclass
class Estimates:
    """Medians over what was measured on devices of this type: of the same comparison, else of the op, else of all."""

    device_type: Literal["cuda", "cpu"]
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    _same: dict[tuple[str, str, str | None], list[Cost]] = field(default_factory=dict)
    _of_op: dict[str, list[Cost]] = field(default_factory=dict)

    @classmethod
    def from_measurements(
        cls, measurements: Iterable[Measurement], device_type: Literal["cuda", "cpu"], cores: int | None = None
    ) -> Estimates:
        """Read the phases of everything that was measured to the end on a device of this type."""
        found = cls(device_type, cores or os.cpu_count() or 1)
        for of in measurements:
            if of.environment.device.type != device_type or of.status is not RunStatus.MEASURED:
                continue
            built_s = sum(arm.build_s for arm in of.arms) if of.compile_cache == _BUILT_AHEAD else 0.0
            cost = Cost(sum(of.phases_s.values()), built_s)
            found._same.setdefault((of.op, of.case.content, of.context), []).append(cost)
            found._of_op.setdefault(of.op, []).append(cost)
        return found

    def of_task(self, op: str, task: Task) -> Cost:
        """One comparison alone."""
        known = (
            self._same.get((op, task.case.content, task.context))
            or self._of_op.get(op)
            or [cost for costs in self._of_op.values() for cost in costs]
        )
        if not known:
            return Cost(UNKNOWN_S[self.device_type])
        return Cost(median(cost.measure_s for cost in known), median(cost.build_s for cost in known))

    def of_run(self, costs: Sequence[Cost]) -> float:
        """Seconds of one run of these comparisons: start, compiling ahead, measuring; with a margin."""
        if not costs:
            return 0.0
        builders = max(1, min(MAX_BUILDERS, self.cores // 2, len(costs)))
        build_s = min(sum(cost.build_s for cost in costs) / builders, BUILD_LIMIT_S)
        return MARGIN * (START_S[self.device_type] + build_s + sum(cost.measure_s for cost in costs))
