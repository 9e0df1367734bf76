"""One fresh process of a cell: build the model once, prove and compile every arm, time them interleaved.

Started by `harness.e2e.runner`; nothing is decided here.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.e2e import quality
from harness.e2e.arms import (
    BASELINE_ID,
    CEILING_ID,
    DYNAMIC_ID,
    OPAQUE_ID,
    TWIN_ID,
    Signature,
    model_arm,
    raise_graph_limits,
    routed,
    wired_implementation,
)
from harness.e2e.build import build, load
from harness.e2e.calls import Calls, Shadow, counting_native, seen_calls, upstream_sources
from harness.e2e.controls import opaque_native, slowed
from harness.e2e.engaged import counted, disengaged, launches_of
from harness.e2e.models import family as family_of
from harness.e2e.protocol import CellJob
from harness.e2e.state import State
from harness.e2e.timing import Blocks, Sampler
from harness.measure.inputs import SeededDraw
from harness.measure.link import Link, check_device, first_line, synchronize
from harness.op import Candidate, Device, Impl, Op
from harness.schema.measurement import EnvironmentRecord, TelemetryRecord
from harness.schema.process import CallsRecord, ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Contract, Kind, RunStatus
from harness.schema.workload import Execution
from harness.stats.rule import PILOT_PAIRS, Budget, RuleSettings, pairs_per_process
from harness.stats.units import log_ratios
from harness.wiring import Wiring

POSITIVE_ID = "torch.compile_slowed"
_BUILD_LIMIT_S = 900.0
_STEP_LIMIT_S = 600.0
_GRAPH_WARM_UPS = 3


class RefusedError(Exception):
    """The cell cannot be measured: one sentence says why."""


@dataclass
class CellProcess:
    """Measures one process of a cell."""

    job: CellJob
    op: Op
    wiring: Wiring
    candidates: list[Candidate]
    sources: dict[str, str]
    device: Device
    environment: EnvironmentRecord
    e2e_sha256: str
    wiring_sha256: str
    copy_bytes_per_us: float
    link: Link
    started_s: float
    """`time.monotonic` when the process was started."""
    phases_s: dict[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def measure(self) -> ProcessRecord:
        """The process, start to end. Raises RefusedError when no arm could be compared with native."""
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        raise_graph_limits()
        job = self.job
        self.family = family_of(job.family)
        with self._phase("build"):
            self.link.begin("", "building the model", _BUILD_LIMIT_S)
            model = self._model()
            draw = SeededDraw(job.settings.seed, torch.bfloat16, torch.device(self.device.type))
            inputs = self.family.inputs(model, job.component.inputs, draw)
        with self._phase("calls"):
            native, expected, calls = self._native_calls(model, inputs)
        states = self._states(calls)
        if job.process == 0:
            with self._phase("shadow"):
                self._shadow(states, model, inputs)
        with self._phase("compile"):
            self._compile(states, model, inputs)
        if job.process == 0:
            with self._phase("quality"):
                self._quality(states, model, inputs, native)
        del native
        baseline = states[0]
        if not baseline.alive:
            raise RefusedError(f"the baseline failed: {baseline.reason}")
        with self._phase("engagement"):
            self._engage(states, expected)
        gc.collect()
        with self._phase("timing"):
            timed = [state for state in states if state.alive]
            blocks, sampler, repeats, ready_s, telemetry = self._time(timed)
        for state in timed:
            assert state.arm is not None
            if added := state.arm.log.graphs - state.graphs:
                state.fail(ArmStatus.BASELINE_UNCERTIFIED, f"{added} graphs were compiled while it was timed")
        del sampler
        status, reason = RunStatus.MEASURED, ""
        if blocks.void_reason:
            status, reason = RunStatus.THROTTLED, blocks.void_reason
        elif not baseline.alive:
            status, reason = RunStatus.BASELINE_UNCERTIFIED, baseline.reason
        times = {state.id: tuple(pairs) for state, pairs in zip(timed, blocks.times_ms, strict=True)}
        return ProcessRecord(
            op=job.op,
            context=job.context,
            workload=job.workload,
            component=job.component,
            sequence=job.sequence,
            process=job.process,
            cold_compile=job.cold_compile,
            p_max=job.p_max,
            pairs=2 * len(blocks.orders),
            status=status,
            reason=reason,
            environment=self.environment,
            library=quality.library_version(self.family.library),
            checkpoint=quality.checkpoint_sha256(job.checkpoint) if job.checkpoint else None,
            attention_backend=quality.attention_backend(model),
            upstream=upstream_sources(self.wiring),
            e2e_sha256=self.e2e_sha256,
            wiring_sha256=self.wiring_sha256,
            seed=job.settings.seed,
            settings=job.settings.stored(),
            op_bytes=calls.bytes_moved,
            copy_bytes_per_us=self.copy_bytes_per_us,
            runs_per_sample=repeats,
            orders=tuple(blocks.orders),
            timed_arms=tuple(state.id for state in timed),
            arms=tuple(self._record(state, times) for state in states),
            start_s=ready_s - self.started_s,
            pair_s=sum(blocks.block_s) / max(1, len(blocks.block_s)) / 2,
            telemetry=telemetry,
            phases_s=self.phases_s,
            started_at=started_at,
        )

    # -- the steps -------------------------------------------------------------------------------------------------

    def _model(self) -> nn.Module:
        job, device = self.job, torch.device(self.device.type)
        if job.checkpoint:
            return load(self.family, job.checkpoint, device)
        return build(self.family, job.config, torch.bfloat16, device, job.settings.seed)

    def _native_calls(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, int, Calls]:
        """Native's output, its calls counted by hooks, and the calls seen through the wiring."""
        self.link.begin("", "counting the op's calls", _STEP_LIMIT_S)
        with counting_native(model, self.wiring) as seen:
            native = self.family.run(model, inputs)
        expected = seen.total()
        if not expected:
            raise RefusedError(f"{self.job.workload} calls {self.job.op} nowhere that its wiring knows")
        calls, output = seen_calls(
            self.family, model, inputs, self.op, self.wiring, self.candidates, self.device, self.job.workload
        )
        if not torch.equal(output, native):
            raise RefusedError("the wiring's native formula does not reproduce the model's own output to the bit")
        if not torch.equal(self.family.run(model, inputs), native):
            raise RefusedError("the model does not repeat its own output to the bit, unwired as before")
        if calls.count != expected:
            raise RefusedError(f"the wiring sees {calls.count} calls where the model makes {expected}")
        return native, expected, calls

    def _states(self, calls: Calls) -> list[State]:
        """All arms, the baseline first."""
        first = self.job.process == 0
        tolerance = Contract.TOLERANCE
        states = [
            State(BASELINE_ID, ModelRole.BASELINE, Kind.COMPILE, tolerance),
            State(DYNAMIC_ID, ModelRole.BASELINE_DYNAMIC, Kind.COMPILE, tolerance),
            State(TWIN_ID, ModelRole.TWIN, Kind.COMPILE, tolerance),
        ]
        if self.job.settings.slowdown_pct:
            states.append(State(POSITIVE_ID, ModelRole.POSITIVE, Kind.COMPILE, tolerance))
        if first:
            nothing, opaque = self.wiring.nothing, opaque_native(self.op, self.wiring)
            states += [
                State(CEILING_ID, ModelRole.CEILING, Kind.COMPILE, tolerance, implementation=nothing),
                State(OPAQUE_ID, ModelRole.OPAQUE, Kind.COMPILE, tolerance, implementation=opaque),
            ]
        for candidate in self.candidates:
            state = State(candidate.id, ModelRole.CANDIDATE, candidate.kind, candidate.contract, candidate)
            states.append(state)
            declined = calls.declined[candidate.id]
            state.declined_calls = sum(calls.kinds[key] for key in declined)
            if candidate.id in self.job.quarantined:
                state.fail(*self.job.quarantined[candidate.id])
            elif missing := candidate.provider.missing():
                state.fail(ArmStatus.NOT_INSTALLED, missing)
            elif self.device.type == "cpu" and candidate.kind is Kind.CUDA:
                state.fail(ArmStatus.INELIGIBLE, "needs an NVIDIA GPU")
            elif len(declined) == len(calls.kinds):
                state.fail(ArmStatus.INELIGIBLE, next(iter(declined.values())))
            else:
                implementation = wired_implementation(self.op, self.wiring, candidate)
                state.implementation = routed(implementation, self.wiring.native, frozenset(declined))
            state.calls = CallsRecord(expected=calls.count, declined=_shown(declined))
        return states

    def _shadow(self, states: list[State], model: nn.Module, inputs: dict[str, Any]) -> None:
        for state in states:
            if state.candidate is None or state.implementation is None or not state.alive:
                continue
            with self._touching(state, "checking every call"):
                interpreted = self.device.type == "cpu" and state.kind is Kind.TRITON
                shadow = Shadow(
                    self.wiring, state.candidate, state.implementation, self.job.tolerance, int(interpreted)
                )
                state.shadow = shadow
                with self.wiring.apply(model, shadow):
                    self.family.run(model, inputs)
                if shadow.reason:
                    state.fail(ArmStatus.GATE_FAILED, shadow.reason)

    def _compile(self, states: list[State], model: nn.Module, inputs: dict[str, Any]) -> None:
        """Build and first run of every arm; odd processes build them the other way round."""
        for state in states if self.job.process % 2 == 0 else reversed(states):
            if self.device.type == "cpu" and state.kind is Kind.TRITON:
                state.fail(ArmStatus.REHEARSED, "checked call by call in Triton's interpreter; never timed")
            if not state.alive:
                continue
            with self._touching(state, "compiling"):
                implementation = state.implementation
                state.arm = model_arm(
                    state.id,
                    state.role,
                    self.family,
                    model,
                    partial(_apply, self.wiring, implementation) if implementation else None,
                    candidate=state.candidate,
                    dynamic=state.role is ModelRole.BASELINE_DYNAMIC,
                )
                run = partial(state.arm.run, self.family, inputs)
                start = perf_counter()
                run()
                synchronize(self.device.type)
                state.compile_s = perf_counter() - start
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                    run()
                    synchronize("cuda")
                    state.peak_bytes = torch.cuda.max_memory_allocated()
                run()
                state.graphs = state.arm.log.graphs
                state.run = self._launched(run)
                if state.role is ModelRole.POSITIVE:
                    state.run = slowed(state.run, self.job.settings.slowdown_pct, self.device.type)

    def _launched(self, run: Callable[[], object]) -> Callable[[], object]:
        """The run as the component is launched: from Python, or captured once and replayed."""
        if self.job.component.execution is not Execution.CUDA_GRAPH or self.device.type != "cuda":
            return run
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_GRAPH_WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def _quality(self, states: list[State], model: nn.Module, inputs: dict[str, Any], native: Tensor) -> None:
        """Errors of every compiled output against the fp32 model; the ceiling's is left out, it is wrong by design."""
        self.link.begin("", "fp32 reference", _STEP_LIMIT_S)
        reference = quality.reference_output(self.family, model, inputs)
        own = quality.relative_error(native, reference)
        for state in states:
            if state.arm is None or state.role is ModelRole.CEILING or not state.alive:
                continue
            with self._touching(state, "quality"):
                output = state.arm.run(self.family, inputs)
                state.quality = quality.judged(output, native, reference, own, real=self.job.checkpoint is not None)
                if state.candidate is not None and state.quality.ratio > quality.LIMIT:
                    ratio = state.quality.ratio
                    reason = f"error against fp32 is {ratio:.2f} x native's, the limit is {quality.LIMIT}"
                    state.fail(ArmStatus.GATE_FAILED, reason)

    def _engage(self, states: list[State], expected: int) -> None:
        baseline = states[0].arm
        assert baseline is not None
        before = counted(self.wiring.native_calls, baseline.log.nodes)
        for state in states:
            if state.implementation is None or state.arm is None or state.run is None or not state.alive:
                continue
            with self._touching(state, "engagement"):
                candidate = state.candidate
                launches = launches_of(state.run, self.device.type, partial(synchronize, self.device.type))
                replayed = self.job.component.execution is Execution.CUDA_GRAPH and self.device.type == "cuda"
                custom = candidate is not None and candidate.kind is not Kind.REWRITE
                patterns = candidate.kernels if candidate is not None and self.device.type == "cuda" else ()
                state.calls = CallsRecord(
                    expected=expected,
                    eager=state.shadow.calls if state.shadow is not None else None,
                    compiled=launches.ops.total() if custom and not replayed else None,
                    kernels=counted(patterns, launches.kernels),
                    native_nodes=counted(self.wiring.native_calls, state.arm.log.nodes),
                    native_nodes_baseline=before,
                    graphs=state.arm.log.graphs,
                    graphs_baseline=baseline.log.graphs,
                    declined=state.calls.declined if state.calls is not None else {},
                )
                if candidate is not None and (reason := disengaged(state.calls, state.declined_calls)):
                    state.fail(ArmStatus.FELL_BACK, reason)

    def _time(self, timed: list[State]) -> tuple[Blocks, Sampler, int, float, TelemetryRecord]:
        runs = [state.run for state in timed if state.run is not None]
        sampler = Sampler(runs, partial(synchronize, self.device.type), baseline=0)
        self.link.begin("", "timing", max(_STEP_LIMIT_S, self.job.settings.budget_s))
        repeats = sampler.runs_per_sample()
        ready = monotonic()
        blocks = sampler.measure(
            partial(self._blocks_wanted, ready),
            repeats=repeats,
            seed=self.job.settings.seed + self.job.process,
            block_void=self.link.block_void,
            progress=self.link.blocks,
        )
        return blocks, sampler, repeats, ready, self.link.telemetry(ready, monotonic(), blocks.void)

    def _blocks_wanted(self, ready_s: float, kept: Blocks) -> int:
        """Half of K. In process 0, K comes from the spread of the first pairs of the arm that spreads most."""
        if self.job.pairs is not None:
            return self.job.pairs // 2
        if 2 * len(kept.orders) < PILOT_PAIRS:
            return PILOT_PAIRS // 2
        settings = self.job.settings
        budget = Budget(settings.budget_s, ready_s - self.started_s, sum(kept.block_s) / len(kept.block_s) / 2)
        pilots = [
            np.ravel(log_ratios(kept.times_ms[0][: PILOT_PAIRS // 2], pairs[: PILOT_PAIRS // 2]))
            for pairs in kept.times_ms[1:]
        ]
        rule = RuleSettings(tau0_log_pct=settings.tau0_log_pct)
        return max(int(pairs_per_process(pilot, budget, rule)) for pilot in pilots) // 2

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _record(self, state: State, times: dict[str, tuple[tuple[float, float], ...]]) -> ModelArmRecord:
        candidate, log = state.candidate, state.arm.log if state.arm is not None else None
        return ModelArmRecord(
            id=state.id,
            role=state.role,
            kind=state.kind,
            contract=state.contract,
            status=state.status,
            reason=state.reason,
            provider_version=candidate.provider.version() if candidate is not None else None,
            source_sha256=self.sources.get(state.id, ""),
            graph_count=state.graphs if log is not None else None,
            graphs_added=log.graphs - state.graphs if log is not None else 0,
            compile_s=state.compile_s,
            peak_bytes=state.peak_bytes,
            calls=state.calls,
            shadow=state.shadow.record() if state.shadow is not None else None,
            quality=state.quality,
            times_ms=times.get(state.id, ()),
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + monotonic() - start

    @contextmanager
    def _touching(self, state: State, phase: str) -> Iterator[None]:
        """Announce the arm; its exception becomes its status."""
        self.link.begin(state.id, phase, _BUILD_LIMIT_S)
        try:
            yield
            check_device(self.device.type)
        except torch.OutOfMemoryError as error:
            state.fail(ArmStatus.OUT_OF_MEMORY, f"in {phase}: {first_line(error)}")
            torch.cuda.empty_cache()
        except Exception as error:
            traceback.print_exc()  # to the process's log
            check_device(self.device.type)  # a lost device is the process's end, not this arm's alone
            state.fail(ArmStatus.CRASHED, f"in {phase}: {type(error).__name__}: {first_line(error)}")


def _apply(wiring: Wiring, implementation: Impl, model: nn.Module) -> Any:
    return wiring.apply(model, implementation)


def _shown(declined: dict[Signature, str]) -> dict[str, str]:
    """Kinds of calls as shapes of their first tensor, with the reason."""
    shown = {}
    for key, reason in declined.items():
        shape = next(value[1] for value in key if len(value) > 2)
        shown["x".join(map(str, shape))] = reason
    return shown
