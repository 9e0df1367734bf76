"""Proof that a wired candidate is what ran in the timed callable, and that native's chain is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from harness.schema.process import CallsRecord

NAMESPACE = "dit_harness::"
"""Of the custom ops that candidates are registered as (`harness.measure.arms.registered_op`)."""


@dataclass(frozen=True)
class Launches:
    """What one run launched."""

    kernels: Counter[str]
    """Device kernels by name; empty on a CPU."""
    ops: Counter[str]
    """The harness's custom ops by name; a replayed graph calls none."""


def launches_of(run: Callable[[], object], device_type: str, synchronize: Callable[[], None]) -> Launches:
    """Profile one run."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device_type == "cuda" else [])]
    synchronize()
    with profile(activities=activities, acc_events=True) as trace:
        run()
        synchronize()
    kernels: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    for event in trace.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA:
            kernels[event.name()] += 1
        elif event.name().startswith(NAMESPACE):
            ops[event.name()] += 1
    return Launches(kernels, ops)


def counted(patterns: Iterable[str], names: Counter[str]) -> dict[str, int]:
    """How many of the names each pattern matches (search), with multiplicity."""
    return {pattern: sum(n for name, n in names.items() if re.search(pattern, name)) for pattern in patterns}


def disengaged(calls: CallsRecord, declined_calls: int) -> str:
    """Why the record does not show the candidate in place of every native call, or ""."""
    eligible = calls.expected - declined_calls
    if calls.eager is not None and calls.eager != calls.expected:
        return (
            f"the wiring called the op {calls.eager} times in one eager run, the model calls it {calls.expected} times"
        )
    if calls.compiled is not None and calls.compiled != eligible:
        return f"its op ran {calls.compiled} times in one compiled run where {eligible} calls are its own"
    if calls.kernels and sum(calls.kernels.values()) < eligible:
        seen = ", ".join(f"{pattern!r} {count} times" for pattern, count in calls.kernels.items())
        return f"its kernels were launched {seen} in one run where {eligible} calls are its own"
    for pattern, before in calls.native_nodes_baseline.items():
        if not before:
            return f"native's {pattern!r} does not stand in the baseline's graphs: nothing proves that it was replaced"
        now = calls.native_nodes[pattern]
        if now * calls.graphs_baseline >= before * calls.graphs:
            return f"native's {pattern!r} still stands {now} times in the compiled graphs"
    return ""
