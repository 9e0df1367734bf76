"""What is known of one arm while a process of a cell runs, and which arms a process has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.e2e.arms import (
    BASELINE_ID,
    CEILING_ID,
    DYNAMIC_ID,
    OPAQUE_ID,
    POSITIVE_ID,
    TWIN_ID,
    ModelArm,
    Signature,
    routed,
    wired_implementation,
)
from harness.e2e.calls import Calls, Shadow
from harness.e2e.controls import opaque_native
from harness.e2e.quality import worst_of as worst_quality
from harness.e2e.timing import NO_TIMES, ArmTimes
from harness.measure.arms import NO_MULTICAST
from harness.measure.link import agree
from harness.measure.rank_gate import worst_of as worst_gate
from harness.measure.ranks import Team
from harness.op import Candidate, Impl
from harness.schema.process import CallsRecord, ModelArmRecord, ModelRole, QualityRecord
from harness.schema.vocabulary import ArmStatus, Contract, Kind

if TYPE_CHECKING:
    from harness.e2e.workbench import Workbench


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
    """Graphs compiled up to the end of the warm-up."""
    calls: CallsRecord | None = None
    declined_calls: int = 0
    shadow: Shadow | None = None
    quality: QualityRecord | None = None

    @property
    def alive(self) -> bool:
        """Whether it is still in the comparison."""
        return self.status is ArmStatus.OK

    @property
    def graphs_added(self) -> int:
        """Graphs compiled since."""
        return self.arm.log.graphs - self.graphs if self.arm is not None else 0

    def fail(self, status: ArmStatus, reason: str) -> None:
        """Take it out; the first reason sticks."""
        if self.alive:
            self.status, self.reason = status, reason

    def record(self, source_sha256: str, team: Team, times: ArmTimes = NO_TIMES) -> ModelArmRecord:
        """As stored; a team records together."""
        shadow = self.shadow.record() if self.shadow is not None else None
        return ModelArmRecord(
            id=self.id,
            role=self.role,
            kind=self.kind,
            contract=self.contract,
            status=self.status,
            reason=self.reason,
            provider_version=self.candidate.provider.version() if self.candidate is not None else None,
            source_sha256=source_sha256,
            graph_count=self.graphs if self.arm is not None else None,
            graphs_added=self.graphs_added,
            compile_s=self.compile_s,
            peak_bytes=self.peak_bytes,
            calls=self.calls,
            shadow=worst_gate(team.gather(shadow, f"calls of {self.id}")),
            quality=worst_quality(team.gather(self.quality, f"quality of {self.id}")),
            times_ms=times.ms,
            rank_times=times.of_ranks,
        )


def states_of(bench: Workbench, calls: Calls) -> list[State]:
    """All arms of this process, the baseline first; ceiling and opaque native in the first process alone."""
    job = bench.job
    own = [
        (BASELINE_ID, ModelRole.BASELINE, None),
        (DYNAMIC_ID, ModelRole.BASELINE_DYNAMIC, None),
        (TWIN_ID, ModelRole.TWIN, None),
    ]
    if job.settings.slowdown_pct:
        own.append((POSITIVE_ID, ModelRole.POSITIVE, None))
    wired: list[tuple[str, ModelRole, Impl | None]] = []
    if job.process == 0:
        wired = [
            (CEILING_ID, ModelRole.CEILING, bench.wiring.nothing),
            (OPAQUE_ID, ModelRole.OPAQUE, opaque_native(bench.op, bench.wiring)),
        ]
    states = [
        State(arm_id, role, Kind.COMPILE, Contract.TOLERANCE, implementation=implementation)
        for arm_id, role, implementation in (*own, *wired)
    ]
    for state in states:
        if why := job.left_out.get(state.id):
            state.fail(*why)
    states += _candidates(bench, calls)
    for state in states:
        agree(bench.team, state)
    return states


def _candidates(bench: Workbench, calls: Calls) -> Iterator[State]:
    for candidate in bench.candidates:
        state = State(candidate.id, ModelRole.CANDIDATE, candidate.kind, candidate.contract, candidate)
        declined = calls.declined[candidate.id]
        state.declined_calls = sum(calls.kinds[key] for key in declined)
        if why := bench.job.left_out.get(candidate.id):
            state.fail(*why)
        elif missing := candidate.provider.missing():
            state.fail(ArmStatus.NOT_INSTALLED, missing)
        elif candidate.multicast:
            state.fail(ArmStatus.INELIGIBLE, NO_MULTICAST)
        elif bench.device.type == "cpu" and candidate.kind is Kind.CUDA:
            state.fail(ArmStatus.INELIGIBLE, "needs an NVIDIA GPU")
        elif len(declined) == len(calls.kinds):
            state.fail(ArmStatus.INELIGIBLE, next(iter(declined.values())))
        else:
            implementation = wired_implementation(bench.op, bench.wiring, candidate)
            state.implementation = routed(implementation, bench.wiring.native, frozenset(declined))
        state.calls = CallsRecord(expected=calls.count, declined=_shown(declined))
        yield state


def _shown(declined: dict[Signature, str]) -> dict[str, str]:
    """Kinds of calls as shapes of their first tensor, with the reason."""
    shown = {}
    for key, reason in declined.items():
        shape = next(value[1] for value in key if len(value) > 2)
        shown["x".join(map(str, shape))] = reason
    return shown
