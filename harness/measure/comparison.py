"""One comparison, start to end, inside the worker: gate → clock → gate again, all arms of one case interleaved.

Nothing is decided here; what was seen becomes one `Measurement`. Every step says which arm it is about to touch, so
that a crash or a hang can be laid at the right door.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from time import monotonic
from types import MappingProxyType

import torch
from torch._inductor.codecache import PyCodeCache

from harness.measure.arms import BASELINE_ID, Arm, arms_of, certified
from harness.measure.armstate import ArmState
from harness.measure.clock import Rotation, tampered
from harness.measure.contract import ContractProbe
from harness.measure.eligible import does_not_fit
from harness.measure.engagement import PROFILED_CALLS, Profile, disengaged, profiled
from harness.measure.gate import ArmGate, Gate, Reference, tensors_of
from harness.measure.inputs import fingerprint
from harness.measure.link import Link, Phase, agree, synchronize, touching
from harness.measure.rank_gate import unequal_ranks
from harness.measure.ranks import together
from harness.measure.sampler import Samples
from harness.measure.timing import TimedPart
from harness.op import Args, Candidate, Context, Device, Op
from harness.protocol import Settings, Task, stored_settings
from harness.schema.case import Case, Dtype, Layout
from harness.schema.manifest import Tolerance
from harness.schema.measurement import (
    ArmRecord,
    ControlsRecord,
    EnvironmentRecord,
    Measurement,
    RanksRecord,
    RooflineRecord,
    TelemetryRecord,
)
from harness.schema.vocabulary import ArmStatus, Cache, Kind, Method, Role, RunStatus

MEMORY_MARGIN = 1.05
"""Nothing moves its bytes this much faster than the best copy of the run and did the work."""
_REPLAY_SEED = 2
_AFTER_SEED = 3


class Comparison:
    """Measures tasks of one op on one device; probes each candidate's contract once."""

    def __init__(
        self,
        op: Op,
        candidates: list[Candidate],
        sources: Mapping[str, str],
        tolerance: Tolerance,
        device: Device,
        environment: EnvironmentRecord,
        controls: ControlsRecord,
        compile_cache: str,
        settings: Settings,
        link: Link,
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`refused` are candidates that must not be measured, with why."""
        self.op = op
        self.candidates = candidates
        self.sources = sources
        self.tolerance = tolerance
        self.device = device
        self.torch_device = torch.device(device.type)
        self.environment = environment
        self.controls = controls
        self.compile_cache = compile_cache
        self.settings = settings
        self.link = link
        self.team = link.team
        self.refused = refused
        self._probed: dict[tuple[str, str | None], tuple[str, tuple[str, ...]]] = {}
        self._interpreted: set[tuple[str, Layout, Dtype]] = set()

    @cached_property
    def ranks(self) -> RanksRecord | None:
        """Who measures together; None for one process."""
        return together(self.team, self.environment)

    def run(self, task: Task) -> Measurement:
        """Measure one task. Raises DeviceLostError when an arm took the CUDA context with it."""
        return _Run(self, task).measure()

    def probe(self, state: ArmState, case: Case) -> tuple[str, tuple[str, ...]]:
        """The candidate's contract probe, remembered."""
        candidate = state.arm.candidate
        assert candidate is not None
        key = (candidate.id, candidate.context)
        if key not in self._probed:
            context = self.op.context(candidate.context) if candidate.context else None
            probe = ContractProbe(self.op, context, self.tolerance, self.device, self.link)
            self._probed[key] = probe.run(candidate, state.arm, case)
        return self._probed[key]

    def arm_gate(self, gate: Gate, arm: Arm) -> ArmGate:
        """The gate of one arm. What Triton's interpreter runs is judged in full once per layout and dtype."""
        return ArmGate(gate, arm, thorough=not gate.interpreted(arm) or _judged_as(gate, arm) not in self._interpreted)

    def gated(self, arm_gate: ArmGate) -> None:
        """Remember an interpreted arm that passed the whole gate."""
        if arm_gate.thorough and arm_gate.gate.interpreted(arm_gate.arm):
            self._interpreted.add(_judged_as(arm_gate.gate, arm_gate.arm))


def _judged_as(gate: Gate, arm: Arm) -> tuple[str, Layout, Dtype]:
    return arm.id, gate.case.layout, gate.case.dtype


class _Run:
    def __init__(self, comparison: Comparison, task: Task) -> None:
        self.c = comparison
        self.task = task
        self.case = task.case
        self.context: Context | None = comparison.op.context(task.context) if task.context else None
        self.states: list[ArmState] = []
        self.declined: list[ArmRecord] = []
        self.phases_s: dict[str, float] = {}
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self.gate = Gate(
            comparison.op,
            task.case,
            self.context,
            comparison.tolerance,
            comparison.torch_device,
            comparison.settings.seed,
            comparison.team.seat,
        )
        self.fingerprints: dict[str, str] = {}
        self.rotation = Rotation(0, 0, Cache.WARM)
        self.method = Method.WALL if comparison.device.type == "cpu" else Method.CUDA_GRAPH

    # -- the way through -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self) -> Measurement:
        with self._phase("setup"):
            self._collect_arms()
            args = self.gate.draw()
            self._decline_by_name(args)
            self.fingerprints = self._fingerprints(args)
        del args
        with self._phase("gate"):
            base_args = self._gate_all()
        if reason := self._baseline_problem():
            return self._record(RunStatus.BASELINE_UNCERTIFIED, reason)
        with self._phase("profile"):
            self._profile_all(base_args)
        with self._phase("capture"):
            timed = TimedPart(self.states, self.gate, self.c.device, self.c.link, base_args, self._bytes_moved())
            self.rotation, self.method = timed.rotation, timed.clock.method
            timed.check_replay(_REPLAY_SEED, after=False)
        roofline = self._roofline(timed.copy_us)
        if self.rotation.cache is Cache.COLD and self.c.device.type == "cuda":
            rate = roofline.bytes_moved / roofline.copy_us
            if rate > MEMORY_MARGIN * self.c.controls.copy_bytes_per_us:
                return self._record(
                    RunStatus.ENV_UNFIT,
                    f"a cold copy of the case's size ran at {rate / 1e6:.2f} TB/s, above the device's ceiling of "
                    f"{self.c.controls.copy_bytes_per_us / 1e6:.2f} TB/s: the rotation is not cold",
                    roofline,
                )
        if reason := self._baseline_problem():
            return self._record(RunStatus.BASELINE_UNCERTIFIED, reason, roofline)
        start = monotonic()
        with self._phase("timing"):
            samples = timed.sample(self.c.settings.seconds_per_arm, self.c.settings.seed, trial=self.task.trial)
        telemetry = self.c.link.telemetry(start, monotonic(), samples.void)
        if samples.void_reason:
            return self._record(RunStatus.THROTTLED, samples.void_reason, roofline, telemetry)
        with self._phase("gate after"):
            timed.check_replay(_AFTER_SEED, after=True)
            self._certify_after(roofline)
        with self._phase("cross-checks"):
            timed.host_times(cross_checks=self.c.settings.cross_checks)
        reason = self._baseline_problem()
        status = RunStatus.BASELINE_UNCERTIFIED if reason else RunStatus.MEASURED
        return self._record(status, reason, roofline, telemetry, samples)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + monotonic() - start

    # -- arms ------------------------------------------------------------------------------------------------------

    def _collect_arms(self) -> None:
        arms, declined = arms_of(self.c.op, self.c.candidates, self.task, self.c.device, self.c.team)
        self.states = [ArmState(arm) for arm in arms]
        self.declined = [
            ArmRecord(
                id=one.candidate.id,
                kind=one.candidate.kind,
                role=Role.CANDIDATE,
                contract=one.candidate.contract,
                status=one.status,
                reason=one.reason,
                provider_version=one.candidate.provider.version(),
                source_sha256=self.c.sources.get(one.candidate.id, ""),
            )
            for one in declined
        ]
        for state in self.states:
            if state.arm.id in self.task.quarantined:
                state.fail(*self.task.quarantined[state.arm.id])
            elif (reason := self.c.refused.get(state.arm.id)) is not None:
                state.fail(ArmStatus.GATE_FAILED, reason)

    def _decline_by_name(self, args: Args) -> None:
        for state in self.states:
            if (candidate := state.arm.candidate) is None:
                continue
            with touching(self.c.link, state, Phase.BUILD, self.c.device.type):
                if reason := does_not_fit(candidate, self.c.op, self.context, args):
                    state.fail(ArmStatus.INELIGIBLE, reason)

    def _fingerprints(self, args: Args) -> dict[str, str]:
        """Of every rank's tensors: rank 0's under their names, rank 1's as `name@1`."""
        mine = {name: fingerprint(tensor) for name, tensor in tensors_of(args).items()}
        return {
            f"{name}@{rank}" if rank else name: digest
            for rank, theirs in enumerate(self.c.team.gather(mine, "fingerprints"))
            for name, digest in theirs.items()
        }

    def _state(self, arm_id: str) -> ArmState:
        return next(state for state in self.states if state.arm.id == arm_id)

    # -- gate ------------------------------------------------------------------------------------------------------

    def _gate_all(self) -> Args:
        """Build, probe and gate every arm; the arguments of the first reference, for the clock to rotate."""
        base: Args | None = None
        for reference in self.gate.references():
            for state in (state for state in self.states if state.alive):
                if base is None:
                    self._build(state, reference)
                if state.alive and state.gate is not None:
                    with touching(self.c.link, state, Phase.GATE, self.c.device.type):
                        state.gate.see(reference)
                        if state.gate.reason:
                            state.fail(ArmStatus.GATE_FAILED, state.gate.reason)
                    if state.alive and (reason := unequal_ranks(self.c.team, state.gate)):
                        state.gate.reason = f"{state.gate.variants[-1]}: {reason}"
                        state.fail(ArmStatus.GATE_FAILED, state.gate.reason)
                if not state.alive:
                    self.gate.repair(reference)
            base = base or reference.args
        assert base is not None
        for state in self.states:
            if state.alive and state.gate is not None:
                self.c.gated(state.gate)
            if self.gate.interpreted(state.arm):
                state.fail(ArmStatus.REHEARSED, "passed the gate in Triton's interpreter; never timed")
        return base

    def _build(self, state: ArmState, reference: Reference) -> None:
        state.gate = self.c.arm_gate(self.gate, state.arm)
        if self.gate.interpreted(state.arm) and state.arm.counter is None and not state.arm.mutates:
            self._probe(state)  # nothing is compiled
            return
        with touching(self.c.link, state, Phase.BUILD, self.c.device.type):
            scratch = self.gate.draw() if state.arm.mutates else reference.args
            generated_before = len(PyCodeCache.modules)
            start = monotonic()
            state.arm.outputs(state.arm.prepared(scratch))
            synchronize(self.c.device.type)
            state.generated = tuple(PyCodeCache.modules[generated_before:])
            state.build_s = self.task.build_s.get(state.arm.id, monotonic() - start)
            if self.c.device.type == "cuda":
                state.peak_bytes = _peak_bytes(state.arm, state.arm.prepared(scratch))
        self._probe(state)

    def _probe(self, state: ArmState) -> None:
        if (candidate := state.arm.candidate) is None or not state.alive or state.gate is None:
            return
        if self.context is None or candidate.context is not None:
            with touching(self.c.link, state, Phase.PROBE, self.c.device.type):
                reason, state.notes = self.c.probe(state, self.case)
                if reason:
                    state.gate.reason = f"contract: {reason}"
                    state.fail(ArmStatus.GATE_FAILED, state.gate.reason)

    def _baseline_problem(self) -> str:
        """Why there is no baseline to compare with, or ""."""
        state = self._state(BASELINE_ID)
        if not state.alive:
            return f"{state.status}: {state.reason}"
        for other in self.states:
            if other.alive and (problem := self.c.team.told(certified(other.arm) or "", f"compile of {other.arm.id}")):
                other.fail(ArmStatus.BASELINE_UNCERTIFIED, problem)
        return state.reason

    # -- profile ---------------------------------------------------------------------------------------------------

    def _profile_all(self, base: Args) -> None:
        baseline: Profile | None = None
        for state in sorted(self.states, key=lambda s: s.arm.role is not Role.BASELINE):
            if not state.alive:
                continue
            with touching(self.c.link, state, Phase.PROFILE, self.c.device.type):
                args = state.arm.prepared(self.gate.draw() if state.arm.mutates else base)
                calls = [partial(state.arm.call, **args)] * PROFILED_CALLS
                state.profile = profiled(calls, self.c.device.type, partial(synchronize, self.c.device.type))
                if state.arm.role is Role.BASELINE:
                    baseline = state.profile
                elif state.arm.candidate is not None:
                    other = None if state.arm.kind is Kind.REWRITE else baseline
                    if reason := disengaged(state.arm.candidate.kernels, state.profile, other):
                        state.fail(ArmStatus.FELL_BACK, reason)

    # -- limits ----------------------------------------------------------------------------------------------------

    def _bytes_moved(self) -> int:
        return (self.c.op if self.context is None else self.context).bytes_moved(self.case)

    def _roofline(self, copy_us: float) -> RooflineRecord:
        floor = self.c.op.floor_bytes if self.context is None else None
        return RooflineRecord(
            bytes_moved=self._bytes_moved(),
            floor_bytes=floor(self.case) if floor else None,
            copy_us=copy_us,
            l2_resident=self.rotation.cache is Cache.WARM,
        )

    def _certify_after(self, roofline: RooflineRecord) -> None:
        patched = tampered()
        ceiling = max(self.c.controls.copy_bytes_per_us, roofline.bytes_moved / roofline.copy_us)
        for state in self.states:
            if not state.samples_us:
                continue
            if patched:
                state.fail(ArmStatus.GATE_FAILED, f"{patched} was replaced in this process: no time in it counts")
            fastest = min(min(pair) for pair in state.samples_us)
            if not roofline.l2_resident and roofline.bytes_moved / fastest > MEMORY_MARGIN * ceiling:
                rate = roofline.bytes_moved / fastest / 1e6
                state.fail(
                    ArmStatus.FASTER_THAN_MEMORY,
                    f"{rate:.2f} TB/s, above {MEMORY_MARGIN} x the copy's {ceiling / 1e6:.2f} TB/s of this run",
                )
            agree(self.c.team, state)

    # -- the record ------------------------------------------------------------------------------------------------

    def _record(
        self,
        status: RunStatus,
        reason: str,
        roofline: RooflineRecord | None = None,
        telemetry: TelemetryRecord | None = None,
        samples: Samples | None = None,
    ) -> Measurement:
        timed = tuple(state.arm.id for state in self.states if state.samples_us)
        return Measurement(
            op=self.c.op.id,
            case=self.case,
            context=self.task.context,
            status=status,
            reason=reason,
            environment=self.c.environment,
            controls=self.c.controls,
            roofline=roofline,
            method=self.method,
            cache=self.rotation.cache,
            rotation=self.rotation.sets,
            rotated_bytes=self.rotation.bytes,
            compile_cache=self.c.compile_cache,
            seed=self.c.settings.seed,
            settings=stored_settings(self.c.settings),
            input_fingerprints=self.fingerprints,
            orders=tuple(samples.orders) if samples else (),
            timed_arms=timed if samples else (),
            arms=(
                *(state.record(self.c.sources.get(state.arm.id, ""), self.c.team) for state in self.states),
                *self.declined,
            ),
            telemetry=telemetry or TelemetryRecord(available=False),
            phases_s=self.phases_s,
            started_at=self.started_at,
            ranks=self.c.ranks,
        )


def _peak_bytes(arm: Arm, args: Args) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    arm.outputs(args)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)
