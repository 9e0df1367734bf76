"""Arms that are no candidates: native behind a custom op, and a baseline slowed on purpose."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import cast

import torch

from harness.measure.arms import own_code
from harness.measure.link import synchronize
from harness.measure.ranks import ALONE, Team
from harness.op import Impl, Op
from harness.wiring import Wiring

_opaque: dict[tuple[str, str, str], Impl] = {}


def opaque_native(op: Op, wiring: Wiring) -> Impl:
    """Native, compiled, inside a custom op: what a candidate that is as fast as the compiled native would cost.

    Registered once per process, with the op's fake (or, in a context, native's own shapes).
    """
    key = (op.id, wiring.context or "alone", wiring.family)
    if key not in _opaque:
        compiled = torch.compile(own_code(wiring.native, "opaque"), dynamic=False)
        name = f"dit_harness::opaque_{'_'.join(key)}"
        schema = torch.library.infer_schema(wiring.native, mutates_args=())
        custom = torch.library.custom_op(
            name, compiled, mutates_args=(), schema=schema, tags=(torch.Tag.flexible_layout,)
        )
        custom.register_fake(op.fake if wiring.context is None else wiring.native)
        _opaque[key] = getattr(torch.ops.dit_harness, name.partition("::")[2]).default
    return _opaque[key]


def slowed(run: Callable[[], object], percent: float, device_type: str, team: Team = ALONE) -> Callable[[], object]:
    """`run` followed by a spin that takes `percent` of its time, on all ranks as long; measured here once."""

    def seconds(call: Callable[[], object]) -> float:
        synchronize(device_type)
        start = perf_counter()
        call()
        synchronize(device_type)
        return perf_counter() - start

    wanted = team.most(statistics.median(seconds(run) for _ in range(5)), "time of the baseline") * percent / 100
    if device_type == "cuda":
        cycles, sleep = 20_000_000, cast("Callable[[int], None]", torch.cuda._sleep)
        rate = cycles / statistics.median(seconds(partial(sleep, cycles)) for _ in range(5))
        spin: Callable[[], None] = partial(sleep, int(rate * wanted))
    else:

        def spin() -> None:
            until = perf_counter() + wanted
            while perf_counter() < until:
                pass

    def call() -> object:
        result = run()
        spin()
        return result

    return call
