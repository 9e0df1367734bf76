"""One fresh process of a cell: build the model once, prove and compile every arm, time them interleaved.

A model split over ranks is one such process on each; what one of them sees for itself is gathered before anything is
made of it, as in `harness.measure.comparison`, and their records are one (`Team`; one process alone is a team of one).

Started by `harness.e2e.runner`; nothing is decided here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import torch
from torch import nn

from harness.e2e import quality
from harness.e2e.arms import raise_graph_limits
from harness.e2e.beaten import leave_out_beaten
from harness.e2e.before import told
from harness.e2e.build import build, load
from harness.e2e.calls import upstream_sources
from harness.e2e.eta import FIRST_ONLY, FIRST_ONLY_PHASES
from harness.e2e.launch import compile_arms
from harness.e2e.models import Family
from harness.e2e.models import family as family_of
from harness.e2e.pilot import pairs_wanted
from harness.e2e.proofs import judge_outputs, native_calls, prove_engaged, shadow_candidates
from harness.e2e.protocol import CellJob
from harness.e2e.state import State, states_of
from harness.e2e.timing import NO_TIMES, Blocks, Sampler
from harness.e2e.workbench import BUILD_LIMIT_S, STEP_LIMIT_S, RefusedError, Workbench
from harness.measure.inputs import SeededDraw
from harness.measure.link import Link, agree, synchronize
from harness.measure.ranks import together
from harness.op import Candidate, Device, Op
from harness.schema.measurement import EnvironmentRecord, TelemetryRecord
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.stats.rule import PILOT_PAIRS
from harness.wiring import Wiring


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
        job, first, team = self.job, self.job.process == 0, self.link.team
        raise_graph_limits()
        with self._phase("build"):
            self.link.begin("", "building the model", BUILD_LIMIT_S)
            family = family_of(job.family)
            model = self._model(family)
            draw = SeededDraw(job.settings.seed, torch.bfloat16, torch.device(self.device.type))
            inputs = family.share(family.inputs(model, job.component.inputs, draw), team.rank, team.ranks)
        bench = Workbench(job, self.op, self.wiring, self.candidates, self.device, family, inputs, self.link)
        with self._phase("calls"):
            native, calls = native_calls(bench, model)
        states = states_of(bench, calls)
        library = quality.library_version(family.library)
        # later processes are told by the first: a sequence keeps the arms that it began with
        if first and (beaten := told(job, self.environment, library, self.e2e_sha256)):
            next(one for one in states if one.role is ModelRole.BASELINE_DYNAMIC).fail(ArmStatus.BEATEN, beaten)
        if first:
            with self._phase("shadow"):
                shadow_candidates(bench, states, model)
        with self._phase("compile"):
            compile_arms(bench, states, model)
        if first:
            with self._phase("quality"):
                judge_outputs(bench, states, model, native)
        del native
        baseline = states[0]
        if not baseline.alive:
            raise RefusedError(f"the baseline failed: {baseline.reason}")
        with self._phase("engagement"):
            prove_engaged(bench, states, calls.count)
        gc.collect()
        if first:
            with self._phase("baselines"):
                leave_out_beaten(bench, states)
        with self._phase("timing"):
            timed = [state for state in states if state.alive]
            blocks, repeats, ready_s, telemetry = self._time(states, timed)
        for state in timed:
            if state.graphs_added:
                reason = f"{state.graphs_added} graphs were compiled while it was timed"
                state.fail(ArmStatus.BASELINE_UNCERTIFIED, reason)
            agree(team, state)
        status, reason = RunStatus.MEASURED, ""
        if blocks.void_reason:
            status, reason = RunStatus.THROTTLED, blocks.void_reason
        elif not baseline.alive:
            status, reason = RunStatus.BASELINE_UNCERTIFIED, baseline.reason
        times = {state.id: blocks.of(arm, repeats, team) for arm, state in enumerate(timed)}
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
            library=library,
            checkpoint=quality.checkpoint_sha256(job.checkpoint) if job.checkpoint else None,
            attention_backend=" ".join(
                filter(None, (quality.attention_backend(model), family.attention_limits(inputs)))
            ),
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
            arms=tuple(
                state.record(self.sources.get(state.id, ""), team, times.get(state.id, NO_TIMES)) for state in states
            ),
            start_s=ready_s - self.started_s,
            pair_s=sum(blocks.block_s) / max(1, len(blocks.block_s)) / 2,
            telemetry=telemetry,
            phases_s=self.phases_s,
            started_at=started_at,
            ranks=together(team, self.environment),
        )

    def _model(self, family: Family) -> nn.Module:
        job, device, seat = self.job, torch.device(self.device.type), self.link.team.seat
        if job.checkpoint:
            model = load(family, job.checkpoint, device)
        else:
            model = build(family, job.config, torch.bfloat16, device, job.settings.seed)
        if seat.ranks > 1:
            if self.wiring.shard is None:
                raise RefusedError(f"the wiring of {job.op} in {job.family} does not say how ranks share the model")
            self.wiring.shard(model, seat.group)
        return model

    def _time(self, states: list[State], timed: list[State]) -> tuple[Blocks, int, float, TelemetryRecord]:
        runs = [state.run for state in timed if state.run is not None]
        sampler = Sampler(runs, partial(synchronize, self.device.type), baseline=0, team=self.link.team)
        self.link.begin("", "timing", max(STEP_LIMIT_S, self.job.settings.budget_s))
        repeats = sampler.runs_per_sample()
        ready = monotonic()
        blocks = sampler.measure(
            partial(self._blocks_wanted, states, timed, ready),
            repeats=repeats,
            seed=self.job.settings.seed + self.job.process,
            block_void=self.link.block_void,
            progress=self.link.blocks,
        )
        return blocks, repeats, ready, self.link.telemetry(ready, monotonic(), blocks.void)

    def _blocks_wanted(self, states: list[State], timed: list[State], ready_s: float, kept: Blocks) -> int:
        """Half of K, which process 0 chooses."""
        if self.job.pairs is not None:
            return self.job.pairs // 2
        if 2 * len(kept.orders) < PILOT_PAIRS:
            return PILOT_PAIRS // 2
        later = [state for state in timed if state.role not in FIRST_ONLY]
        lacked_s = sum(self.phases_s.get(name, 0.0) for name in FIRST_ONLY_PHASES)
        lacked_s += sum(state.compile_s for state in states if state not in later)
        numbers = [timed.index(state) for state in later]
        return pairs_wanted(kept, numbers, ready_s - self.started_s - lacked_s, self.job.settings) // 2

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = monotonic()
        try:
            yield
        finally:
            self.phases_s[name] = self.phases_s.get(name, 0.0) + monotonic() - start
