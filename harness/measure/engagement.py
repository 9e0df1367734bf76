"""Which kernels really ran: a profile of the timed callable, checked against what the candidate declares.

sglang's GroupNorm+SiLU falls back to aten in silence when grad mode is on; a kernel that is not seen here did not run.
The profile is also the independent clock: CUPTI's kernel durations beside ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

PROFILED_CALLS = 5
"""Calls in one profile."""


@dataclass(frozen=True)
class Profile:
    """One callable's kernels."""

    kernels: tuple[str, ...]
    """Distinct names, in order of first launch; on a CPU the names of dispatched ops."""
    launches_per_call: float
    device_us: float | None
    """Sum of kernel durations per call; None on a CPU."""
    streams: int
    """Distinct CUDA streams the kernels ran on, NCCL's left out; 0 on a CPU."""


def profiled(calls: Sequence[Callable[[], object]], device_type: str, synchronize: Callable[[], None]) -> Profile:
    """Profile the calls one after another (pass one per rotating set, so that they are as cold as the samples)."""
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU] if device_type == "cuda" else [ProfilerActivity.CPU]
    synchronize()
    with profile(activities=activities, acc_events=True) as trace:
        for call in calls:
            call()
        synchronize()
    names: dict[str, None] = {}
    launches, nanoseconds, streams = 0, 0, set()
    for event in trace.profiler.kineto_results.events():
        on_gpu = event.device_type() == DeviceType.CUDA
        if device_type == "cuda" and on_gpu:
            names[event.name()] = None
            launches += 1
            nanoseconds += event.duration_ns()
            # NCCL's process group has a stream of its own, which waiting for its tensor joins.
            if not event.name().startswith("nccl"):
                streams.add(event.device_resource_id())
        elif device_type == "cpu":
            names[event.name()] = None
            launches += 1
    device_us = nanoseconds / 1e3 / len(calls) if device_type == "cuda" else None
    return Profile(tuple(names), launches / len(calls), device_us, len(streams))


def missing_kernels(patterns: tuple[str, ...], kernels: tuple[str, ...]) -> tuple[str, ...]:
    """The declared patterns that match (search) no kernel seen."""
    return tuple(pattern for pattern in patterns if not any(re.search(pattern, name) for name in kernels))


def disengaged(patterns: tuple[str, ...], seen: Profile, baseline: Profile | None) -> str:
    """Why the profile does not show the candidate at work, or ""."""
    missing = missing_kernels(patterns, seen.kernels)
    if missing:
        shown = ", ".join(name[:60] for name in seen.kernels[:4]) or "none"
        return f"declared kernel {missing[0]!r} not seen; kernels that ran: {shown}"
    if patterns and baseline is not None and not missing_kernels(patterns, baseline.kernels):
        return "the declared kernels also run in the baseline: two arms resolve to the same code"
    if seen.streams > 1:
        return f"launches on {seen.streams} streams; the clock follows one"
    return ""
