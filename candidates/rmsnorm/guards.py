"""What kernels of RMSNorm may not take, as guards with reasons."""

from candidates._providers import guards
from candidates.rmsnorm.rounding import BEFORE_WEIGHT
from harness.op import Device
from harness.schema.case import Case, Layout


def weighted(case: Case, device: Device) -> str | None:
    """A weight to multiply by."""
    return None if case.params["weight"] else "its kernel multiplies by a weight, the case has none"


def rounds_before_weight(case: Case, device: Device) -> str | None:
    """The formula that rounds before the weight is applied."""
    rounding = case.params["rounding"]
    return None if rounding == BEFORE_WEIGHT else f"its kernel rounds before the weight, the case {rounding}"


def one_matrix(case: Case, device: Device) -> str | None:
    """x can be seen as (rows, D) without a copy."""
    if case.layout is Layout.SLICED and len(case.shape) == 4 and case.shape[2] > 1:
        return "heads of a packed projection are no (rows, D) matrix without a copy"
    return guards.one_matrix(case, device)
