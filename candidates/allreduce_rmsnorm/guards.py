"""What kernels of this op may not take, as guards with reasons."""

from harness.op import Device
from harness.schema.case import Case

ONE_SHOT_BYTES = 32 << 20
"""Largest tensor that our one-shot kernel sends whole to every peer; above it, a buffer for it is a waste of memory."""


def adds_residual(case: Case, device: Device) -> str | None:
    """A residual to add."""
    return None if case.params["residual"] else "its kernel adds a residual, the case has none"


def small_enough_for_one_shot(case: Case, device: Device) -> str | None:
    """A tensor that is worth sending whole."""
    size = case.numel * case.dtype.bytes
    if size <= ONE_SHOT_BYTES:
        return None
    return f"one shot sends the whole tensor to every rank; {size >> 20} MiB is more than {ONE_SHOT_BYTES >> 20} MiB"
