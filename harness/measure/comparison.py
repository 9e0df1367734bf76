"""One comparison, start to end, inside the worker: gate → clock → gate again, all arms of one case interleaved.

Nothing is decided here; what was seen becomes one `Measurement`. Every step says which arm it is about to touch, so
that a crash or a hang can be laid at the right door.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Protocol

import torch

from harness.measure.arms import (
    BASELINE_ID,
    Arm,
    autotuned_configs,
    baseline_arms,
    candidate_arm,
    certified,
)
from harness.measure.clock import (
    ArmSets,
    Clock,
    Rotation,
    Timed,
    clock_for,
    launches_for,
    plan_rotation,
    tampered,
)
from harness.measure.contract import ContractProbe
from harness.measure.controls import copy_time_us
from harness.measure.engagement import PROFILED_CALLS, Profile, disengaged, profiled
from harness.measure.gate import ArmGate, Gate, Reference, tensors_of
from harness.measure.inputs import fingerprint
from harness.measure.sampler import Budget, Samples, host_time_us, sample, warm_up
from harness.op import Args, Candidate, Context, Device, Op
from harness.protocol import Settings, Task
from harness.schema.case import Case
from harness.schema.manifest import Tolerance
from harness.schema.measurement import (
    ArmRecord,
    ControlsRecord,
    EnvironmentRecord,
    GateRecord,
    Measurement,
    RooflineRecord,
    TelemetryRecord,
)
from harness.schema.vocabulary import ArmStatus, Cache, Kind, Method, Role, RunStatus

MEMORY_MARGIN = 1.05
"""Nothing moves its bytes this much faster than the best copy of the run and did the work."""
_REPLAY_SEED = 2
_AFTER_SEED = 3


class Phase:
    """Names and time limits (s) of the steps that touch one arm."""

    BUILD = ("build", 600.0)
    PROBE = ("contract", 300.0)
    GATE = ("gate", 180.0)
    PROFILE = ("profile", 120.0)
    CAPTURE = ("capture", 180.0)
    SAMPLE = ("timing", 300.0)
    AFTER = ("gate after", 180.0)


class Link(Protocol):
    """The worker's line to the process that supervises it."""

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """Say which arm the next step touches and how long it may take."""

    def block_void(self, start_s: float, stop_s: float) -> str:
        """Ask the watcher whether a block counts."""
        ...

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """The watcher's summary of a span."""
        ...

    def blocks(self, done: int, most: int) -> None:
        """Tell progress."""


class DeviceLostError(Exception):
    """The CUDA context is unusable after an arm's error; only a new process helps. Carries the arm and the error."""

    def __init__(self, arm: str, error: str) -> None:
        super().__init__(f"{arm}: {error}")
        self.arm = arm
        self.error = error


@dataclass
class _State:
    """What is known of one arm so far."""

    arm: Arm
    status: ArmStatus = ArmStatus.OK
    reason: str = ""
    gate: ArmGate | None = None
    notes: tuple[str, ...] = ()
    gate_after: GateRecord | None = None
    profile: Profile | None = None
    build_s: float = 0.0
    peak_bytes: int = 0
    host_us: float | None = None
    do_bench_us: float | None = None
    timed: Timed | None = None
    samples_us: list[tuple[float, float]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.status is ArmStatus.OK

    def fail(self, status: ArmStatus, reason: str) -> None:
        if self.alive:
            self.status, self.reason = status, reason


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
    ) -> None:
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
        self._probed: dict[tuple[str, str | None], tuple[str, tuple[str, ...]]] = {}

    def run(self, task: Task) -> Measurement:
        """Measure one task. Raises DeviceLostError when an arm took the CUDA context with it."""
        return _Run(self, task).measure()

    def probe(self, state: _State, case: Case) -> tuple[str, tuple[str, ...]]:
        """The candidate's contract probe, remembered."""
        candidate = state.arm.candidate
        assert candidate is not None
        key = (candidate.id, candidate.context)
        if key not in self._probed:
            context = self.op.context(candidate.context) if candidate.context else None
            self._probed[key] = ContractProbe(self.op, context, self.tolerance, self.device).run(
                candidate, state.arm, case
            )
        return self._probed[key]


class _Run:
    def __init__(self, comparison: Comparison, task: Task) -> None:
        self.c = comparison
        self.task = task
        self.case = task.case
        self.context: Context | None = comparison.op.context(task.context) if task.context else None
        self.states: list[_State] = []
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
            self.fingerprints = {name: fingerprint(tensor) for name, tensor in tensors_of(args).items()}
        del args
        with self._phase("gate"):
            base_args = self._gate_all()
        if reason := self._baseline_problem():
            return self._record(RunStatus.BASELINE_UNCERTIFIED, reason)
        with self._phase("profile"):
            self._profile_all(base_args)
        with self._phase("capture"):
            sets, clock, copy_us = self._ready_all(base_args)
            self._replayed(sets, _REPLAY_SEED, after=False)
        roofline = RooflineRecord(
            bytes_moved=self._bytes_moved(),
            copy_us=copy_us,
            l2_resident=self.rotation.cache is Cache.WARM,
        )
        if self.rotation.cache is Cache.COLD and self.c.device.type == "cuda":
            rate = roofline.bytes_moved / copy_us
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
            samples = self._sample_all(sets, clock)
        telemetry = self.c.link.telemetry(start, monotonic(), samples.void)
        if samples.void_reason:
            return self._record(RunStatus.THROTTLED, samples.void_reason, roofline, telemetry)
        with self._phase("gate after"):
            self._replayed(sets, _AFTER_SEED, after=True)
            self._certify_after(roofline)
        with self._phase("cross-checks"):
            self._host_times(sets, clock)
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
        self.states = [_State(arm) for arm in baseline_arms(self.c.op, self.context)]
        for candidate in self.c.candidates:
            if candidate.context is not None and candidate.context != self.task.context:
                continue
            if self.task.only is not None and candidate.id not in self.task.only:
                continue
            status, reason = self._eligibility(candidate)
            if status is None:
                self.states.append(_State(candidate_arm(candidate, self.c.op, self.context)))
            else:
                self.declined.append(self._declined(candidate, status, reason))
        for state in self.states:
            if state.arm.id in self.task.quarantined:
                state.fail(*self.task.quarantined[state.arm.id])

    def _eligibility(self, candidate: Candidate) -> tuple[ArmStatus | None, str]:
        if self.c.device.type == "cpu" and candidate.kind is Kind.CUDA:
            return ArmStatus.INELIGIBLE, "needs an NVIDIA GPU"
        if missing := candidate.provider.missing():
            return ArmStatus.NOT_INSTALLED, missing
        if reason := candidate.guard(self.case, self.c.device):
            return ArmStatus.INELIGIBLE, reason
        return None, ""

    def _declined(self, candidate: Candidate, status: ArmStatus, reason: str) -> ArmRecord:
        return ArmRecord(
            id=candidate.id,
            kind=candidate.kind,
            role=Role.CANDIDATE,
            contract=candidate.contract,
            status=status,
            reason=reason,
            provider_version=candidate.provider.version(),
            source_sha256=self.c.sources.get(candidate.id, ""),
        )

    def _state(self, arm_id: str) -> _State:
        return next(state for state in self.states if state.arm.id == arm_id)

    @contextmanager
    def _touching(self, state: _State, phase: tuple[str, float]) -> Iterator[None]:
        """Announce the arm; turn its exceptions into its status, or into DeviceLostError when the context is gone."""
        name, limit_s = phase
        self.c.link.begin(state.arm.id, name, limit_s)
        try:
            yield
            self._synchronize()
        except torch.OutOfMemoryError as error:
            state.fail(ArmStatus.OUT_OF_MEMORY, f"in {name}: {_first_line(error)}")
            torch.cuda.empty_cache()
        except Exception as error:
            reason = f"in {name}: {type(error).__name__}: {_first_line(error)}"
            try:
                self._synchronize()
            except Exception as sticky:
                raise DeviceLostError(state.arm.id, f"in {name}: {_first_line(sticky)}") from error
            state.fail(ArmStatus.CRASHED, reason)

    def _synchronize(self) -> None:
        if self.c.device.type == "cuda":
            torch.cuda.synchronize()

    # -- gate ------------------------------------------------------------------------------------------------------

    def _gate_all(self) -> Args:
        """Build, probe and gate every arm; the arguments of the first reference, for the clock to rotate."""
        base: Args | None = None
        for reference in self.gate.references():
            if base is None:
                base = reference.args
                for state in self.states:
                    self._build(state, reference)
            for state in self.states:
                if state.alive and state.gate is not None:
                    with self._touching(state, Phase.GATE):
                        state.gate.see(reference)
                        if state.gate.reason:
                            state.fail(ArmStatus.GATE_FAILED, state.gate.reason)
        assert base is not None
        for state in self.states:
            if state.arm.kind is Kind.TRITON and self.c.device.type == "cpu":
                state.fail(ArmStatus.REHEARSED, "passed the gate in Triton's interpreter; never timed")
        return base

    def _build(self, state: _State, reference: Reference) -> None:
        if not state.alive:
            return
        state.gate = ArmGate(self.gate, state.arm)
        with self._touching(state, Phase.BUILD):
            scratch = self.gate.draw() if state.arm.mutates else reference.args
            start = monotonic()
            state.arm.outputs(state.arm.prepared(scratch))
            self._synchronize()
            state.build_s = monotonic() - start
            if self.c.device.type == "cuda":
                state.peak_bytes = _peak_bytes(state.arm, state.arm.prepared(scratch))
        if (candidate := state.arm.candidate) is None or not state.alive:
            return
        if self.context is None or candidate.context is not None:
            with self._touching(state, Phase.PROBE):
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
            if other.alive and (problem := certified(other.arm)):
                other.fail(ArmStatus.BASELINE_UNCERTIFIED, problem)
        return state.reason

    # -- profile ---------------------------------------------------------------------------------------------------

    def _profile_all(self, base: Args) -> None:
        baseline: Profile | None = None
        for state in sorted(self.states, key=lambda s: s.arm.role is not Role.BASELINE):
            if not state.alive:
                continue
            with self._touching(state, Phase.PROFILE):
                args = state.arm.prepared(self.gate.draw() if state.arm.mutates else base)
                calls = [partial(state.arm.call, **args)] * PROFILED_CALLS
                state.profile = profiled(calls, self.c.device.type, self._synchronize)
                if state.arm.role is Role.BASELINE:
                    baseline = state.profile
                elif state.arm.candidate is not None:
                    other = None if state.arm.kind is Kind.REWRITE else baseline
                    if reason := disengaged(state.arm.candidate.kernels, state.profile, other):
                        state.fail(ArmStatus.FELL_BACK, reason)

    # -- clock -----------------------------------------------------------------------------------------------------

    def _bytes_moved(self) -> int:
        owner = self.c.op if self.context is None else self.context
        return owner.bytes_moved(self.case)

    def _ready_all(self, base: Args) -> tuple[ArmSets, Clock, float]:
        alive = [state for state in self.states if state.alive]
        mutated = tuple(sorted({name for state in alive for name in state.arm.mutates}))
        outputs = self._state(BASELINE_ID).arm.outputs(base)
        output_bytes = sum(output.untyped_storage().nbytes() for output in outputs)
        del outputs
        input_bytes = sum(t.untyped_storage().nbytes() for t in tensors_of(base).values())
        self.rotation = plan_rotation(input_bytes + output_bytes, self.c.device)
        clock = clock_for(self.c.device, capturable=True)
        estimates = {
            state.arm.id: clock.estimate_us(partial(state.arm.call, **state.arm.prepared(base)))
            for state in alive
            if not state.arm.mutates
        }
        if mutated:
            # A launch that changes its inputs needs its own set, so there are as many sets as launches.
            needed = launches_for(min(estimates.values()), 1)
            self.rotation = Rotation(max(self.rotation.sets, needed), self.rotation.set_bytes, self.rotation.cache)
        sets = ArmSets(base, self.rotation.sets, mutated)
        if self.rotation.cache is Cache.COLD:
            touched = sets.distinct_bytes() + output_bytes * self.rotation.sets
            assert touched >= 5 * self.c.device.l2_bytes, f"{touched} bytes rotate, L2 is {self.c.device.l2_bytes}"
        clock = self._ready_with(clock, alive, sets, estimates, fixed=bool(mutated))
        copy_us = copy_time_us(clock, self._bytes_moved(), self.rotation.sets, self.torch_device)
        return sets, clock, copy_us

    @property
    def torch_device(self) -> torch.device:
        return self.c.torch_device

    def _ready_with(
        self, clock: Clock, alive: list[_State], sets: ArmSets, estimates: dict[str, float], *, fixed: bool
    ) -> Clock:
        """Make every arm ready under one method: when one arm cannot be captured, all are timed by events."""
        for state in alive:
            sets.restore()
            launches = sets_count = len(sets.sets)
            if not fixed:
                launches = launches_for(estimates[state.arm.id], sets_count)
            with self._touching(state, Phase.CAPTURE):
                try:
                    state.timed = clock.ready(state.arm, sets.prepared(state.arm), launches)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    self._synchronize()
                    if clock.method is not Method.CUDA_GRAPH:
                        raise
                    events = clock_for(self.c.device, capturable=False)
                    return self._ready_with(events, alive, sets, estimates, fixed=fixed)
        self.method = clock.method
        return clock

    def _replayed(self, sets: ArmSets, seed_offset: int, *, after: bool) -> None:
        """New values in the first set, poison in the outputs, one replay of the timed launches, and the gate again."""
        fresh = self.gate.draw(seed_offset)
        for name, tensor in tensors_of(fresh).items():
            sets.sets[0][name].copy_(tensor)
        sets.keep_as_pristine()
        reference = self.gate.reference(fresh)
        for state in self.states:
            if not state.alive or state.timed is None:
                continue
            with self._touching(state, Phase.AFTER if after else Phase.CAPTURE):
                sets.restore()
                for outputs in state.timed.outputs:
                    for output in outputs:
                        if not state.arm.returns:
                            output.fill_(float("nan"))
                state.timed.replay()
                self._synchronize()
                judged = ArmGate(self.gate, state.arm)
                judged.judge(state.timed.outputs[0], reference)
                if after:
                    state.gate_after = judged.record()
                if judged.reason:
                    when = "after timing" if after else "on the replayed path"
                    state.fail(ArmStatus.GATE_FAILED, f"{when}: {judged.reason}")
        sets.restore()

    def _sample_all(self, sets: ArmSets, clock: Clock) -> Samples:
        alive = [state for state in self.states if state.alive and state.timed is not None]
        timed = [state.timed for state in alive if state.timed is not None]
        baseline = next(i for i, state in enumerate(alive) if state.arm.role is Role.BASELINE)
        budget = Budget(self.c.settings.seconds_per_arm * len(alive))
        if self.task.trial:
            budget = Budget(0.0, min_blocks=2, max_blocks=2)
        self.c.link.begin("", *Phase.SAMPLE)
        warm_up(timed, baseline, sets.restore)
        samples = sample(
            timed,
            baseline,
            seed=self.c.settings.seed,
            budget=budget,
            prepare=sets.restore,
            block_void=self.c.link.block_void,
            progress=lambda done: self.c.link.blocks(done, budget.max_blocks),
        )
        for state, pairs in zip(alive, samples.pairs_us, strict=True):
            state.samples_us = pairs
        return samples

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

    def _host_times(self, sets: ArmSets, clock: Clock) -> None:
        for state in self.states:
            if not state.alive or state.timed is None:
                continue
            with self._touching(state, Phase.PROFILE):
                args = sets.prepared(state.arm)[0]
                call = partial(state.arm.call, **args)
                state.host_us = host_time_us(clock, call)
                if self.c.settings.cross_checks and self.c.device.type == "cuda":
                    from triton.testing import do_bench

                    state.do_bench_us = float(do_bench(call, warmup=10, rep=50, return_mode="median")) * 1e3
                    rotating = [partial(state.arm.call, **a) for a in sets.prepared(state.arm)[:200]]
                    seen = profiled(
                        rotating * (1 if len(rotating) > PROFILED_CALLS else PROFILED_CALLS), "cuda", self._synchronize
                    )
                    state.profile = seen
        sets.restore()

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
            settings=self.c.settings.model_dump(exclude={"seed"}),
            input_fingerprints=self.fingerprints,
            orders=tuple(samples.orders) if samples else (),
            timed_arms=timed if samples else (),
            arms=(*(self._arm_record(state) for state in self.states), *self.declined),
            telemetry=telemetry or TelemetryRecord(available=False),
            phases_s=self.phases_s,
            started_at=self.started_at,
        )

    def _arm_record(self, state: _State) -> ArmRecord:
        arm, candidate = state.arm, state.arm.candidate
        profile = state.profile
        return ArmRecord(
            id=arm.id,
            kind=arm.kind,
            role=arm.role,
            contract=arm.contract,
            status=state.status,
            reason=state.reason,
            provider_version=candidate.provider.version() if candidate else None,
            source_sha256=self.c.sources.get(arm.id, ""),
            gate=state.gate.record(state.notes) if state.gate and state.gate.variants else None,
            gate_after=state.gate_after,
            kernels=profile.kernels if profile else (),
            graph_count=arm.counter.graphs if arm.counter else None,
            registration=arm.registration,
            tags=autotuned_configs(candidate) if candidate and candidate.kind is Kind.TRITON else {},
            build_s=state.build_s,
            peak_bytes=state.peak_bytes,
            host_us=state.host_us,
            profiler_us=profile.device_us if profile else None,
            do_bench_us=state.do_bench_us,
            launches=state.timed.launches if state.timed else 0,
            samples_us=tuple(state.samples_us),
        )


def _peak_bytes(arm: Arm, args: Args) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    arm.outputs(args)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
