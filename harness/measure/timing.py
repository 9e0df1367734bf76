"""The timed part of one comparison: rotating sets, one method for all arms, the replayed path checked, the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from harness.measure.arms import BASELINE_ID
from harness.measure.armstate import ArmState
from harness.measure.clock import (
    ArmSets,
    Clock,
    GraphClock,
    Timed,
    clock_for,
    launches_for,
    plan_rotation,
    sets_in_place,
)
from harness.measure.controls import copy_time_us
from harness.measure.engagement import PROFILED_CALLS, profiled
from harness.measure.gate import ArmGate, Gate, storage_bytes, tensors_of
from harness.measure.global_state import watched
from harness.measure.link import Link, Phase, agree, synchronize, touching
from harness.measure.rank_clock import team_clock
from harness.measure.rank_gate import unequal_ranks
from harness.measure.sampler import MIN_BLOCKS, REHEARSAL_BLOCKS, Budget, Samples, host_time_us, sample, warm_up
from harness.op import Args, Device
from harness.schema.vocabulary import ArmStatus, Cache, Method, Role

_LARGE = 2.0
"""In standard deviations: 4.6 % of N(0, 1) lie beyond."""
_ENOUGH_ELEMENTS = 256
"""From here on some element is large, but for one draw in 150 000."""
_COLD_PROFILE_CALLS = 200
"""Most calls in the cold profile of the cross-check."""


class TimedPart:
    """Arms that passed the gate, ready to be sampled over rotating sets of `base`."""

    def __init__(
        self, states: list[ArmState], gate: Gate, device: Device, link: Link, base: Args, bytes_moved: int
    ) -> None:
        self.states = [state for state in states if state.alive]
        self.gate = gate
        self.device = device
        self.link = link
        self.team = link.team
        mutated = tuple(sorted({name for state in self.states for name in state.arm.mutates}))
        baseline = next(state.arm for state in self.states if state.arm.id == BASELINE_ID)
        output_bytes = storage_bytes(baseline.outputs(base))
        input_bytes = storage_bytes(tensors_of(base).values())
        clock = team_clock(device, self.team, capturable=True)
        estimates = self._estimates(clock, base)
        self.rotation = rotation = plan_rotation(input_bytes + output_bytes, device)
        in_place = 0
        if mutated:
            # A launch that changes its inputs needs its own set.
            launches = launches_for(min(estimates.values()), 1, clock.min_sample_us)
            in_place = sets_in_place(rotation, launches, device)
        self.sets = ArmSets(base, rotation.sets, mutated, in_place)
        if rotation.cache is Cache.COLD:
            touched = self.sets.distinct_bytes() + output_bytes * rotation.sets
            assert touched >= 5 * device.l2_bytes, f"{touched} bytes rotate, L2 is {device.l2_bytes}"
        self.clock = self._ready(clock, estimates)
        own = clock_for(device, capturable=self.clock.method is Method.CUDA_GRAPH)
        mine_us = copy_time_us(own, bytes_moved, rotation.sets, torch.device(device.type))
        self.copy_us = self.team.lead(mine_us, "time of a copy")

    def _estimates(self, clock: Clock, base: Args) -> dict[str, float]:
        """Rough µs per call, on the slowest rank, of arms that leave their inputs alone: the baseline always does."""
        estimates: dict[str, float] = {}
        for state in self.states:
            if not state.arm.mutates:
                mine_us = 0.0
                with touching(self.link, state, Phase.CAPTURE, self.device.type):
                    mine_us = clock.estimate_us(partial(state.arm.call, **state.arm.prepared(base)))
                if state.alive:
                    estimates[state.arm.id] = self.team.most(mine_us, f"estimate of {state.arm.id}")
        return estimates

    def _ready(self, clock: Clock, estimates: dict[str, float]) -> Clock:
        """Make every arm ready under one method: where one arm cannot be captured, all are timed by events."""
        sets = self.sets
        for state in self.states:
            if not state.alive:
                continue
            sets.restore()
            captured = True
            with touching(self.link, state, Phase.CAPTURE, self.device.type):
                prepared = sets.prepared(state.arm)
                launches = len(prepared)
                if not state.arm.mutates:
                    launches = launches_for(estimates[state.arm.id], len(prepared), clock.min_sample_us)
                try:
                    state.timed = clock.ready(state.arm, prepared, launches)
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    synchronize(self.device.type)
                    if clock.method is not Method.CUDA_GRAPH:
                        raise
                    captured = False
            if not all(self.team.gather(captured, f"capture of {state.arm.id}")):
                return self._ready(team_clock(self.device, self.team, capturable=False), estimates)
        return clock

    def check_replay(self, seed_offset: int, *, after: bool) -> None:
        """New activations in the first set, a replay of the timed launches, NaN in the outputs, a replay, the gate.

        Few elements are new, at places nobody knows: a result that is remembered until some of them change is stale.
        The second replay is the one judged: its inputs are no news, so a result remembered from the first is NaN now.
        Weights stay as they were when `prepare` saw them.
        """
        fresh = self.gate.draw(seed_offset, weights_offset=self.gate.held_offset)
        self.sets.restore()
        keep_most(fresh, self.sets.sets[0])
        reference = self.gate.reference(fresh, seed_offset=seed_offset)
        for state in self.states:
            if not state.alive or state.timed is None:
                continue
            judged = ArmGate(self.gate, state.arm)
            when = "after timing" if after else "on the replayed path"
            with touching(self.link, state, Phase.AFTER if after else Phase.CAPTURE, self.device.type):
                self.sets.load(fresh)
                state.timed.replay()
                if not state.arm.returns:
                    for output in (output for outputs in state.timed.outputs for output in outputs):
                        output.fill_(float("nan"))
                self.sets.restore()
                state.timed.replay()
                judged.judge(state.timed.outputs[0], self.sets.sets[0], reference)
                if after:
                    state.gate_after = judged.record()
                if judged.reason:
                    state.fail(ArmStatus.GATE_FAILED, f"{when}: {judged.reason}")
            if state.alive and (reason := unequal_ranks(self.team, judged)):
                state.fail(ArmStatus.GATE_FAILED, f"{when}: {reason}")
        self.sets.restore()

    def sample(self, budget_per_arm_s: float, seed: int, *, trial: bool) -> Samples:
        """Warm up and measure blocks; each arm's state keeps its samples."""
        alive = [state for state in self.states if state.alive and state.timed is not None]
        timed = [self._watched(state, state.timed) for state in alive if state.timed is not None]
        baseline = next(i for i, state in enumerate(alive) if state.arm.role is Role.BASELINE)
        least = MIN_BLOCKS if self.device.type == "cuda" else REHEARSAL_BLOCKS
        budget = Budget(budget_per_arm_s * len(alive), min_blocks=least)
        if trial:
            budget = Budget(0.0, min_blocks=2, max_blocks=2)
        self.link.begin("", Phase.SAMPLE.label, Phase.SAMPLE.limit_s + budget.seconds)
        warm_up(timed, baseline, self.sets.restore, budget, self.team)
        samples = sample(
            timed,
            baseline,
            seed=seed,
            budget=budget,
            prepare=self.sets.restore,
            block_void=self.link.block_void,
            progress=lambda done: self.link.blocks(done, budget.max_blocks),
            team=self.team,
        )
        for state, pairs, trains in zip(alive, samples.pairs_us, samples.trains, strict=True):
            state.samples_us, state.trains = pairs, trains
            agree(self.team, state)
        return samples

    def _watched(self, state: ArmState, timed: Timed) -> Timed:
        """As timed, watching the process's settings where a sample runs the candidate's own code on the host."""
        if state.arm.candidate is None or self.clock.method is Method.CUDA_GRAPH:
            return timed

        def sample_us() -> float:
            with watched() as settings:
                taken = timed.sample_us()
            if settings.changed:
                state.fail(ArmStatus.GATE_FAILED, f"in {Phase.SAMPLE.label}: {settings.changed}")
            return taken

        return replace(timed, sample_us=sample_us)

    def host_times(self, *, cross_checks: bool) -> None:
        """Launch-inclusive wall time of every arm; on request do_bench and CUPTI beside our clock."""
        for state in self.states:
            if not state.alive or state.timed is None:
                continue
            with touching(self.link, state, Phase.PROFILE, self.device.type):
                calls: list[Callable[[], object]] = [
                    partial(state.arm.call, **a) for a in self.sets.prepared(state.arm)
                ]
                state.host_us = host_time_us(self.clock, calls[0])
                # What follows times a rank by itself, as often as it likes: others would be counted, or waited for.
                if isinstance(self.clock, GraphClock) and self.team.ranks == 1:
                    self.sets.restore()
                    state.fenced_us = self.clock.fenced_us(
                        state.arm, self.sets.prepared(state.arm), state.timed.launches
                    )
                if cross_checks and self.device.type == "cuda" and self.team.ranks == 1:
                    from triton.testing import do_bench

                    state.do_bench_us = float(do_bench(calls[0], warmup=5, rep=20, return_mode="median")) * 1e3
                    cold = calls[:_COLD_PROFILE_CALLS] if len(calls) > 1 else calls * PROFILED_CALLS
                    state.profile = profiled(cold, self.device.type, partial(synchronize, self.device.type))
        self.sets.restore()


def keep_most(fresh: Args, held: Args) -> None:
    """Put the held values back into fresh ones, but where the fresh are large: some 5 % of a normal draw.

    Tensors of few elements stay as they are: none might be large.
    """
    for name, tensor in tensors_of(fresh).items():
        old = held.get(name)
        if tensor.is_floating_point() and isinstance(old, Tensor) and tensor.numel() >= _ENOUGH_ELEMENTS:
            tensor.copy_(torch.where(tensor.abs() > _LARGE, tensor, old))
