"""The view of a channel-first activation that kernels over the last dim take, its cost, and guards on it."""

from torch import Tensor

from candidates._dense import empty_dense_like
from harness.op import Device
from harness.schema.case import Case, Layout


def to_rows(x: Tensor) -> Tensor:
    """x (N, C, ...) as contiguous (positions, C): a view of a channels-last x, else a transposed copy."""
    return x.movedim(1, -1).contiguous().view(-1, x.shape[1])


def from_rows(rows: Tensor, x: Tensor) -> Tensor:
    """(positions, C) as (N, C, ...) in x's layout: a view for a channels-last x, else a transposed copy."""
    last = x.movedim(1, -1)
    y = rows.view(last.shape).movedim(-1, 1)
    return y if last.is_contiguous() else empty_dense_like(x).copy_(y)


def rms_eps(eps: float, channels: int) -> float:
    """For kernels that add eps to the mean square: with it their result tends to x * √C / eps as x does to 0."""
    return eps * eps / channels


def channels_last(case: Case, device: Device) -> str | None:
    """Rows of channels without a copy."""
    if case.layout is Layout.CHANNELS_LAST:
        return None
    return (
        f"normalises rows of adjacent channels and the case is {case.layout}; sglang.rms_norm_fn times the transposes"
    )


def no_bias(case: Case, device: Device) -> str | None:
    """No bias after the norm."""
    return "takes no bias" if case.params["bias"] else None


def wan_formula(case: Case, device: Device) -> str | None:
    """Diffusers' formula with its default eps, which the kernel has built in."""
    if case.params["upcast"] and case.params["eps"] == 1e-12:
        return None
    return "computes diffusers' formula alone (fp32 inside, eps 1e-12)"
