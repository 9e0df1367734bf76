"""What kernels of RMSNorm may not take, as guards with reasons."""

from candidates.rmsnorm.rounding import BEFORE_WEIGHT
from harness.op import Device
from harness.schema.case import Case


def weighted(case: Case, device: Device) -> str | None:
    """A weight to multiply by."""
    return None if case.params["weight"] else "its kernel multiplies by a weight, the case has none"


def rounds_before_weight(case: Case, device: Device) -> str | None:
    """The formula that rounds before the weight is applied."""
    rounding = case.params["rounding"]
    return None if rounding == BEFORE_WEIGHT else f"its kernel rounds before the weight, the case {rounding}"
