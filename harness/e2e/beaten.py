"""The dynamic baseline, left out of a sequence where the static one clearly beats it.

A win must hold against the faster of the two. In HunyuanVideo's decode on an H200 the dynamic one took 99 s of each
process to compile and 78 ms a run where the static one took 40: it can only agree with what the static one says, and
its compile and its samples are time that the open questions lack.
"""

from __future__ import annotations

from functools import partial

from harness.e2e.state import State
from harness.e2e.timing import Sampler
from harness.e2e.workbench import Workbench
from harness.measure.link import synchronize
from harness.schema.process import ModelRole
from harness.schema.vocabulary import ArmStatus

CLEARLY = 1.05
"""Slower by so much, every sample than every other. Seven processes of one pair (Wan 1.3B's step and its twin, on an
H200) lay within 0.6 %, so no later process is expected to turn that round."""
_WARM_UP = (0, 1)
_ORDERS = ((0, 1), (1, 0))
"""Of blocks with two samples of each, so that neither is favoured while the card warms up."""


def leave_out_beaten(bench: Workbench, states: list[State]) -> None:
    """Take the dynamic baseline out where it is clearly beaten; ranks judge the times that they share."""
    static = states[0]
    dynamic = next(state for state in states if state.role is ModelRole.BASELINE_DYNAMIC)
    if not dynamic.alive:
        return
    with bench.touching(dynamic, "comparing the baselines"):
        assert static.run is not None
        assert dynamic.run is not None
        runs = [static.run, dynamic.run]
        sampler = Sampler(runs, partial(synchronize, bench.device.type), baseline=0, team=bench.team)
        if reason := _beaten(sampler):
            dynamic.fail(ArmStatus.BEATEN, reason)


def _beaten(sampler: Sampler) -> str:
    """The figures where every sample of arm 1 is slower than every one of arm 0 by `CLEARLY`, or ""."""
    repeats = sampler.runs_per_sample()
    sampler.block(_WARM_UP, repeats)
    blocks = [sampler.block(order, repeats) for order in _ORDERS]
    static_ms, dynamic_ms = ([train.ns / 1e6 / repeats for of in blocks for train in of[arm]] for arm in (0, 1))
    slowest, fastest = max(static_ms), min(dynamic_ms)
    if fastest < CLEARLY * slowest:
        return ""
    return (
        f"the fastest of its {len(dynamic_ms)} samples took {fastest:.2f} ms a run, the slowest of as many of the "
        f"static baseline {slowest:.2f} ms"
    )
