"""What is known of one arm while a process of a cell runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.e2e.arms import ModelArm
from harness.e2e.calls import Shadow
from harness.op import Candidate, Impl
from harness.schema.process import CallsRecord, ModelRole, QualityRecord
from harness.schema.vocabulary import ArmStatus, Contract, Kind


@dataclass
class State:
    """What is known of one arm so far."""

    id: str
    role: ModelRole
    kind: Kind
    contract: Contract
    candidate: Candidate | None = None
    implementation: Impl | None = None
    arm: ModelArm | None = None
    run: Callable[[], object] | None = None
    status: ArmStatus = ArmStatus.OK
    reason: str = ""
    compile_s: float = 0.0
    peak_bytes: int = 0
    graphs: int = 0
    calls: CallsRecord | None = None
    declined_calls: int = 0
    shadow: Shadow | None = None
    quality: QualityRecord | None = None

    @property
    def alive(self) -> bool:
        """Whether it is still in the comparison."""
        return self.status is ArmStatus.OK

    def fail(self, status: ArmStatus, reason: str) -> None:
        """Take it out; the first reason sticks."""
        if self.alive:
            self.status, self.reason = status, reason
