"""Builds and compiles every arm, and makes of each the callable that is timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter

import torch
from torch import nn

from harness.e2e.arms import model_arm
from harness.e2e.controls import slowed
from harness.e2e.state import State
from harness.e2e.workbench import Workbench
from harness.measure.link import synchronize
from harness.op import Impl
from harness.schema.process import ModelRole
from harness.schema.vocabulary import ArmStatus, Kind
from harness.wiring import Wiring

_GRAPH_WARM_UPS = 3


def compile_arms(bench: Workbench, states: list[State], model: nn.Module) -> None:
    """Build and first run of every arm; odd processes build them the other way round."""
    device_type = bench.device.type
    for state in states if bench.job.process % 2 == 0 else reversed(states):
        if device_type == "cpu" and state.kind is Kind.TRITON:
            state.fail(ArmStatus.REHEARSED, "checked call by call in Triton's interpreter; never timed")
        if not state.alive:
            continue
        with bench.touching(state, "compiling"):
            implementation = state.implementation
            state.arm = model_arm(
                state.id,
                state.role,
                bench.family,
                model,
                partial(_apply, bench.wiring, implementation) if implementation else None,
                candidate=state.candidate,
                dynamic=state.role is ModelRole.BASELINE_DYNAMIC,
            )
            run = partial(state.arm.run, bench.family, bench.inputs)
            start = perf_counter()
            run()
            synchronize(device_type)
            state.compile_s = perf_counter() - start
            if device_type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                run()
                synchronize("cuda")
                state.peak_bytes = torch.cuda.max_memory_allocated()
            run()
            state.graphs = state.arm.log.graphs
            state.run = _replayed(run) if bench.replayed else run
            if state.role is ModelRole.POSITIVE:
                state.run = slowed(state.run, bench.job.settings.slowdown_pct, device_type, bench.team)


def _apply(wiring: Wiring, implementation: Impl, model: nn.Module) -> AbstractContextManager[None]:
    return wiring.apply(model, implementation)


def _replayed(run: Callable[[], object]) -> Callable[[], object]:
    """The run captured once; what is called is the graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_GRAPH_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # other threads of the process (NCCL's watchdog) may ask CUDA what a capture forbids this one
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay
