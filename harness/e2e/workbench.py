"""What every step of a cell's process works with, and how a step that touches an arm is announced and blamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.e2e.models import Family
from harness.e2e.protocol import CellJob
from harness.measure.link import Link, blamed, check_device
from harness.measure.ranks import Team
from harness.op import Candidate, Device, Op
from harness.schema.workload import Execution
from harness.wiring import Wiring

if TYPE_CHECKING:
    from harness.e2e.state import State

BUILD_LIMIT_S = 900.0
STEP_LIMIT_S = 600.0


class RefusedError(Exception):
    """The cell cannot be measured: one sentence says why."""


@dataclass(frozen=True)
class Workbench:
    """One op in one component of one model, on one device."""

    job: CellJob
    op: Op
    wiring: Wiring
    candidates: list[Candidate]
    device: Device
    family: Family
    inputs: dict[str, Any]
    """What one run of the model is fed."""
    link: Link

    @property
    def team(self) -> Team:
        """The ranks that the model is split over, or this process alone."""
        return self.link.team

    @property
    def replayed(self) -> bool:
        """Whether the component is captured once and replayed."""
        return self.job.component.execution is Execution.CUDA_GRAPH and self.device.type == "cuda"

    def begin(self, phase: str) -> None:
        """Announce a step that touches no arm."""
        self.link.begin("", phase, STEP_LIMIT_S)

    @contextmanager
    def touching(self, state: State, phase: str) -> Iterator[None]:
        """Announce the arm and do as `blamed`: its exception becomes its status, on all ranks."""
        self.link.begin(state.id, phase, BUILD_LIMIT_S)
        with blamed(self.link, state, phase, self.device.type):
            yield
            check_device(self.device.type)
