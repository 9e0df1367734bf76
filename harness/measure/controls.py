"""The clock's own controls: what does nothing reads about 0, and no copy outruns the device's ceiling."""

from __future__ import annotations

from functools import partial

import torch

from harness.measure.arms import Arm
from harness.measure.clock import MIN_LAUNCHES, Clock, launches_for
from harness.op import Args, Device, Impl
from harness.schema.measurement import ControlsRecord
from harness.schema.vocabulary import Contract, Kind, Role

NOOP_LIMIT_US = {"cuda": 0.25, "cpu": 5.0}
"""Above this the clock adds time of its own to every launch. On a CPU the Python call itself is timed."""
_CEILING_L2_FACTOR = 32
_CEILING_BYTES_CPU = 256 << 20
_SAMPLES = 7
_WORD_BYTES = 4


def _arm(name: str, call: Impl) -> Arm:
    return Arm(name, Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, call, "function")


def _nothing() -> tuple[()]:
    return ()


def _memcpy(source: torch.Tensor, target: torch.Tensor) -> tuple[()]:
    target.copy_(source)
    return ()


def _inverted(source: torch.Tensor, target: torch.Tensor) -> tuple[()]:
    torch.bitwise_not(source, out=target)
    return ()


def _median_us(clock: Clock, arm: Arm, sets: list[Args], launches: int) -> float:
    timed = clock.ready(arm, sets, launches)
    timed.sample_us()
    return sorted(timed.sample_us() for _ in range(_SAMPLES))[_SAMPLES // 2]


def copy_time_us(clock: Clock, bytes_moved: int, sets: int, device: torch.device) -> float:
    """Median time of the faster of two copies that read and write `bytes_moved` in all, over `sets` pairs of buffers.

    A memcpy, and an elementwise kernel that reads and writes every byte: inside a CUDA graph the memcpy of some sizes
    reaches two thirds of the kernel's rate, and a roofline must be the best copy there is.
    """
    words = max(bytes_moved // 2 // _WORD_BYTES, 1)
    pairs: list[Args] = []
    for index in range(sets):
        source = torch.full((words,), index + 1, dtype=torch.int32, device=device)
        pairs.append({"source": source, "target": torch.empty_like(source)})
    times = []
    for name, call in (("memcpy", _memcpy), ("inverted copy", _inverted)):
        call_us = clock.estimate_us(partial(call, **pairs[0]))
        times.append(_median_us(clock, _arm(name, call), pairs, launches_for(call_us, sets)))
    return min(times)


def read_controls(clock: Clock, device: Device) -> ControlsRecord:
    """No-op, launch floor and copy ceiling of this device, now."""
    torch_device = torch.device(device.type)
    noop_us = _median_us(clock, _arm("noop", _nothing), [{}], MIN_LAUNCHES)
    floor_us = 0.0
    if device.type == "cuda":
        one = torch.zeros(1, device=torch_device)
        floor_us = _median_us(clock, _arm("one element", lambda x: (x.zero_(), ())[1]), [{"x": one}], 200)
    total = _CEILING_L2_FACTOR * device.l2_bytes if device.type == "cuda" else _CEILING_BYTES_CPU
    copy_us = copy_time_us(clock, total, 1, torch_device)
    limit = NOOP_LIMIT_US[device.type]
    reason = (
        "" if noop_us <= limit else f"a candidate that does nothing reads {noop_us:.2f} µs, the limit is {limit} µs"
    )
    return ControlsRecord(
        noop_us=noop_us,
        copy_bytes_per_us=total / copy_us,
        noop_limit_us=limit,
        launch_floor_us=floor_us,
        passed=not reason,
        reason=reason,
    )
