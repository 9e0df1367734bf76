"""The scale everything is computed on: log-percent, 100 times a natural log-ratio of times.

A positive value means that the candidate takes less time than the baseline. Improvements are percent of the baseline's
time saved, so an improvement of g % is -100 ln(1 - g/100) log-percent; on this scale a gain and the loss that undoes
it are equal and opposite.
"""

import math
from typing import overload

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


def log_percent(improvement_pct: float) -> float:
    """Log-percent of an improvement in percent of the baseline's time; raises ValueError at 100 % and above."""
    if improvement_pct >= 100:
        raise ValueError(f"an improvement of {improvement_pct} % would leave no time at all; it must be below 100 %")
    return -100 * math.log1p(-improvement_pct / 100)


def improvement_percent(value_log_pct: float) -> float:
    """Percent of the baseline's time saved, 100 (1 - exp(-x/100)); the inverse of `log_percent`."""
    return -100 * math.expm1(-value_log_pct / 100)


BAR_LOG_PCT = log_percent(1.0)
"""The bar of every decision: an improvement of 1 %, 1.00503 log-percent."""


@overload
def log_ratios(baseline: float, candidate: float) -> float: ...
@overload
def log_ratios(baseline: npt.ArrayLike, candidate: npt.ArrayLike) -> FloatArray: ...
def log_ratios(baseline: npt.ArrayLike, candidate: npt.ArrayLike) -> FloatArray | float:
    """100 ln(baseline / candidate), element by element.

    Times in any one unit; raises ValueError unless all are finite and above zero.
    """
    base, other = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    if not (np.isfinite(base).all() and np.isfinite(other).all() and (base > 0).all() and (other > 0).all()):
        raise ValueError("times must be finite and above zero")
    ratios: FloatArray | float = 100 * (np.log(base) - np.log(other))
    return ratios
