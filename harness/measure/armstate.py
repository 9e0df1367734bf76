"""What is known of one arm while its comparison runs, and the record it becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

from harness.measure.arms import Arm, autotuned_configs, inductor_configs
from harness.measure.clock import Timed
from harness.measure.engagement import Profile
from harness.measure.gate import ArmGate
from harness.measure.rank_gate import worst_of
from harness.measure.ranks import ALONE, Team
from harness.measure.train import Train, rank_times
from harness.schema.measurement import ArmRecord, GateRecord
from harness.schema.vocabulary import ArmStatus, Kind


@dataclass
class ArmState:
    """What is known of one arm so far."""

    arm: Arm
    status: ArmStatus = ArmStatus.OK
    reason: str = ""
    gate: ArmGate | None = None
    notes: tuple[str, ...] = ()
    gate_after: GateRecord | None = None
    profile: Profile | None = None
    generated: tuple[ModuleType, ...] = ()
    """Modules that Inductor wrote for it."""
    build_s: float = 0.0
    peak_bytes: int = 0
    host_us: float | None = None
    fenced_us: float | None = None
    do_bench_us: float | None = None
    timed: Timed | None = None
    samples_us: list[tuple[float, float]] = field(default_factory=list)
    trains: list[tuple[Train, Train]] = field(default_factory=list)
    """The samples as the ranks saw them; empty for one rank."""

    @property
    def id(self) -> str:
        """The arm's."""
        return self.arm.id

    @property
    def alive(self) -> bool:
        """Whether it is still in the comparison."""
        return self.status is ArmStatus.OK

    def fail(self, status: ArmStatus, reason: str) -> None:
        """Take it out of the comparison; the first reason sticks."""
        if self.alive:
            self.status, self.reason = status, reason

    def record(self, source_sha256: str, team: Team = ALONE) -> ArmRecord:
        """As stored; a team records together."""
        arm, candidate, profile = self.arm, self.arm.candidate, self.profile
        gate = self.gate.record(self.notes) if self.gate and self.gate.variants else None
        gate = worst_of(team.gather(gate, f"gate of {arm.id}"))
        return ArmRecord(
            id=arm.id,
            kind=arm.kind,
            role=arm.role,
            contract=arm.contract,
            status=self.status,
            reason=self.reason,
            provider_version=candidate.provider.version() if candidate else None,
            source_sha256=source_sha256,
            gate=gate,
            gate_after=worst_of(team.gather(self.gate_after, f"gate after of {arm.id}")),
            kernels=profile.kernels if profile else (),
            graph_count=arm.counter.graphs if arm.counter else None,
            registration=arm.registration,
            tags=inductor_configs(self.generated)
            | (autotuned_configs(candidate) if candidate and candidate.kind is Kind.TRITON else {}),
            build_s=self.build_s,
            peak_bytes=self.peak_bytes,
            host_us=self.host_us,
            fenced_us=self.fenced_us,
            # What a rank's kernels take holds their wait for the others'.
            profiler_us=profile.device_us if profile and team.ranks == 1 else None,
            do_bench_us=self.do_bench_us,
            launches=self.timed.launches if self.timed else 0,
            samples_us=tuple(self.samples_us),
            rank_times=rank_times(self.trains, self.timed.launches) if self.timed else None,
        )
