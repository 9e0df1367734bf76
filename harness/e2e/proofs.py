"""What is proved of the arms before any is timed: each call, each output, and that the candidate is what runs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from harness.e2e import quality
from harness.e2e.calls import Calls, Shadow, counting_native, seen_calls
from harness.e2e.engaged import counted, disengaged, launches_of
from harness.e2e.state import State
from harness.e2e.workbench import RefusedError, Workbench
from harness.measure.link import synchronize
from harness.schema.process import CallsRecord, ModelRole
from harness.schema.vocabulary import ArmStatus, Kind

_REPEATS = 4
"""Runs that tell a model that does not repeat itself from a wiring that changed it."""


def native_calls(bench: Workbench, model: nn.Module) -> tuple[Tensor, Calls]:
    """Native's output, and its calls as seen through the wiring.

    Raises RefusedError unless hooks on the unwired model count as many, and both give one output to the bit, as does
    the model once it is unwired again.
    """
    bench.begin("counting the op's calls")
    with counting_native(model, bench.wiring) as seen:
        native = bench.family.run(model, bench.inputs)
    expected = seen.total()
    if not expected:
        raise RefusedError(f"{bench.job.workload} calls {bench.job.op} nowhere that its wiring knows")
    calls, output = seen_calls(bench, model)
    after = bench.family.run(model, bench.inputs)
    for found, what in (
        (output, "the wiring's native formula does not reproduce the model's own output to the bit"),
        (after, "the model, unwired again, does not give its own output to the bit"),
    ):
        apart = "" if torch.equal(found, native) else quality.difference(found, native)
        if apart := bench.team.told(apart, what):
            raise RefusedError(_does_not_repeat(bench, model, after) or f"{what}: {apart}")
    if calls.count != expected:
        raise RefusedError(f"the wiring sees {calls.count} calls where the model makes {expected}")
    return native, calls


def _does_not_repeat(bench: Workbench, model: nn.Module, before: Tensor) -> str:
    """A sentence where runs of the unwired model differ among themselves: then no wiring is to blame."""
    for _ in range(_REPEATS):
        again = bench.family.run(model, bench.inputs)
        apart = "" if torch.equal(again, before) else quality.difference(again, before)
        if apart := bench.team.told(apart, "another run"):
            return (
                "the model does not repeat its own output to the bit, run after run without a wiring: "
                f"{apart}; an operation of it is not deterministic on this device"
            )
    return ""


def shadow_candidates(bench: Workbench, states: list[State], model: nn.Module) -> None:
    """Judge every call of each candidate in one eager run, on the model's own activations."""
    for state in states:
        if state.candidate is None or state.implementation is None or not state.alive:
            continue
        with bench.touching(state, "checking every call"):
            interpreted = bench.device.type == "cpu" and state.kind is Kind.TRITON
            shadow = Shadow(
                bench.wiring, state.candidate, state.implementation, bench.job.tolerance, int(interpreted), bench.team
            )
            state.shadow = shadow
            with bench.wiring.apply(model, shadow):
                bench.family.run(model, bench.inputs)
            if shadow.reason:
                state.fail(ArmStatus.GATE_FAILED, shadow.reason)


def judge_outputs(bench: Workbench, states: list[State], model: nn.Module, native: Tensor) -> None:
    """Errors of every compiled output against the fp32 model; the ceiling's is left out, it is wrong by design."""
    bench.begin("fp32 reference")
    reference = quality.reference_output(bench.family, model, bench.inputs)
    own = quality.relative_error(native, reference)
    perceptual = quality.lpips_from(bench.job.lpips) if bench.job.lpips else None
    for state in states:
        if state.arm is None or state.role is ModelRole.CEILING or not state.alive:
            continue
        with bench.touching(state, "quality"):
            output = state.arm.run(bench.family, bench.inputs)
            real = bench.job.checkpoint is not None
            state.quality = quality.judged(output, native, reference, own, real=real, perceptual=perceptual)
            if state.candidate is not None and state.quality.ratio > quality.LIMIT:
                ratio = state.quality.ratio
                reason = f"error against fp32 is {ratio:.2f} x native's, the limit is {quality.LIMIT}"
                state.fail(ArmStatus.GATE_FAILED, reason)


def prove_engaged(bench: Workbench, states: list[State], expected: int) -> None:
    """Profile one run of every wired arm: the candidate must be what ran, in place of every native call."""
    baseline = states[0].arm
    assert baseline is not None
    before = counted(bench.wiring.native_calls, baseline.log.nodes)
    for state in states:
        if state.implementation is None or state.arm is None or state.run is None or not state.alive:
            continue
        with bench.touching(state, "engagement"):
            candidate = state.candidate
            launches = launches_of(state.run, bench.device.type, partial(synchronize, bench.device.type))
            custom = candidate is not None and candidate.kind is not Kind.REWRITE
            patterns = candidate.kernels if candidate is not None and bench.device.type == "cuda" else ()
            state.calls = CallsRecord(
                expected=expected,
                eager=state.shadow.calls if state.shadow is not None else None,
                compiled=launches.ops.total() if custom and not bench.replayed else None,
                kernels=counted(patterns, launches.kernels),
                native_nodes=counted(bench.wiring.native_calls, state.arm.log.nodes),
                native_nodes_baseline=before,
                graphs=state.arm.log.graphs,
                graphs_baseline=baseline.log.graphs,
                declined=state.calls.declined if state.calls is not None else {},
            )
            if candidate is not None and (reason := disengaged(state.calls, state.declined_calls)):
                state.fail(ArmStatus.FELL_BACK, reason)
