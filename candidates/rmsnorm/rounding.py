"""The named formulas of RMSNorm: where its result is rounded."""

from torch import Tensor

ONCE = "once"
BEFORE_WEIGHT = "before_weight"


def require_one_dtype(x: Tensor, weight: Tensor) -> None:
    """Raises ValueError when rounding before the weight is not defined for these dtypes."""
    if weight.dtype is not x.dtype:
        raise ValueError(f"rounding={BEFORE_WEIGHT} takes a weight of x's dtype {x.dtype}, not {weight.dtype}")


def variant(rounding: str) -> dict[str, str]:
    """The argument that names a formula other than the authority's: a kernel that has no other need not take it."""
    return {} if rounding == ONCE else {"rounding": rounding}
