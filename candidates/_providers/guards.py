"""Conditions that upstream kernels share, as guards with reasons, and the matrix view that most of them take."""

from torch import Tensor

from harness.op import Device, Guard
from harness.schema.case import Case, Dtype, Layout


def all_of(*guards: Guard) -> Guard:
    """The first reason any of the guards gives."""

    def guard(case: Case, device: Device) -> str | None:
        return next((reason for each in guards if (reason := each(case, device)) is not None), None)

    return guard


def dtypes(*allowed: Dtype) -> Guard:
    """Activations of one of these dtypes."""

    def guard(case: Case, device: Device) -> str | None:
        if case.dtype in allowed:
            return None
        return f"takes {', '.join(allowed)} only, the case is {case.dtype}"

    return guard


half_precision = dtypes(Dtype.BF16, Dtype.FP16)


def on_gpu(case: Case, device: Device) -> str | None:
    """A CUDA device."""
    return None if device.type == "cuda" else "needs an NVIDIA GPU"


def dense_rows(case: Case, device: Device) -> str | None:
    """Elements of the last dim lie next to each other."""
    swapped_last = case.layout is Layout.TRANSPOSED and len(case.shape) <= 3
    if case.layout is Layout.CHANNELS_LAST or swapped_last:
        return f"the last dim of a {case.layout} tensor is not contiguous"
    return None


def is_one_matrix(case: Case) -> bool:
    """Whether the leading dims merge into one without a copy."""
    if case.layout is Layout.CHANNELS_LAST:
        return False
    return case.layout is not Layout.TRANSPOSED or (len(case.shape) > 3 and 1 in case.shape[1:3])


def one_matrix(case: Case, device: Device) -> str | None:
    """x can be seen as (rows, D) without a copy."""
    return None if is_one_matrix(case) else f"a {case.layout} tensor is no (rows, D) matrix without a copy"


def contiguous(case: Case, device: Device) -> str | None:
    """No gaps between elements, in logical order."""
    if case.layout in (Layout.CONTIGUOUS, Layout.ODD_STRIDE):
        return None
    return f"takes contiguous tensors only, the case is {case.layout}"


def span(case: Case) -> int:
    """Elements between the first and the last element of the activation; a slice skips over its neighbours."""
    return case.numel * (3 if case.layout is Layout.SLICED else 1)


def spans_less_than(elements: int) -> Guard:
    """Offsets fit the kernel's integers."""

    def guard(case: Case, device: Device) -> str | None:
        if span(case) < elements:
            return None
        return f"32-bit offsets: {span(case):,} elements reach past {elements:,}"

    return guard


def row_elements_at_most(limit: int) -> Guard:
    """D bounded by a number of elements."""

    def guard(case: Case, device: Device) -> str | None:
        return None if case.shape[-1] <= limit else f"D={case.shape[-1]} is more than {limit}"

    return guard


def row_bytes_at_most(limit: int) -> Guard:
    """D bounded by a number of bytes."""

    def guard(case: Case, device: Device) -> str | None:
        row = case.shape[-1] * case.dtype.bytes
        return None if row <= limit else f"a row of {row} bytes is longer than {limit}"

    return guard


def matrix(x: Tensor) -> Tensor:
    """x (..., D) seen as (rows, D); odd strides of dims of size 1 do not survive.

    Raises RuntimeError when that would need a copy.
    """
    return x.view(-1, x.shape[-1])


def require_same_dtype(x: Tensor, weight: Tensor) -> None:
    """Raises TypeError: kernels that read both as one type would return nonsense for a weight of another."""
    if weight.dtype is not x.dtype:
        raise TypeError(
            f"the weight is {weight.dtype} and the activation {x.dtype}; this kernel reads both as one type"
        )
