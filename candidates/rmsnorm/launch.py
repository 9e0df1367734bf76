"""RMSNorm on tensors: collapses the leading dims, picks tile sizes, launches. Imports only torch and Triton."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm.kernels import rmsnorm_long, rmsnorm_tile

LONG_ELEMENTS = 16384
"""Rows beyond this many elements are taken in two passes instead of being held in registers."""


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel that holds rows in registers."""

    rows: int
    warps: int


def make_plan(rows: int, width: int) -> Plan:
    """Rows per program and warps, from the row's width in elements."""
    head, tail = split_row(width)
    if head + tail <= 512:
        return Plan(rows=1 << (2048 // (head + tail)).bit_length() - 1, warps=4)
    if not tail and rows > 1:
        return Plan(rows=2 if head <= 4096 else 1, warps=min(head // 256, 16))
    # eight elements of the tail per thread: head and tail then share a layout, and no exchange is needed
    return Plan(rows=1, warps=min(max((tail or head) // 256, 1), 16))


def split_row(width: int) -> tuple[int, int]:
    """Largest power of two that is not above `width`, and the rest padded to a power of two (or 0)."""
    head = 1 << (width.bit_length() - 1)
    rest = width - head
    return head, 0 if rest == 0 else 1 << (rest - 1).bit_length()


def even_step(x: Tensor) -> int | None:
    """Distance in elements from one row of x (..., D) to the next where that is one number, else None."""
    step, span = 0, 1
    for size, stride in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if span == 1:
            step = stride
        elif stride != step * span:
            return None
        span *= size
    return step


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, h: Tensor | None, eps: float, plan: Plan | None
) -> None:
    if x.numel() == 0:
        return
    if x.ndim > 4:
        raise ValueError(f"x has {x.ndim} dims; these kernels take (T, D) to (B, S, H, D)")
    weight = weight.contiguous()
    width = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    # a tensor that is not there is never touched; x stands in for it
    operands = (x, x if residual is None else residual, x if h is None else h)
    steps = [even_step(y) for y in operands]
    collapsed = None not in steps
    strides: list[int] = []
    for y, step in zip(operands, steps, strict=True):
        leading = [0] * (4 - y.ndim) + list(y.stride()[:-1])
        strides += [0, 0, step or 0] if collapsed else leading
        strides.append(y.stride(-1))
    n1, n2 = ([1] * (4 - x.ndim) + list(x.shape[:-1]))[1:]
    layout = {"COLLAPSED": collapsed, "RESIDUAL": residual is not None}
    tensors = (operands[0], operands[1], weight, out, operands[2])
    if width > LONG_ELEMENTS:
        rmsnorm_long[(rows,)](
            *tensors, eps, width, n1, n2, *strides, BLOCK=8192, **layout, num_warps=16
        )  # fmt: skip
        return
    plan = plan or make_plan(rows, width)
    head, tail = split_row(width)
    rmsnorm_tile[(-(-rows // plan.rows),)](
        *tensors, eps, rows, width, n1, n2, *strides,
        ROWS=plan.rows, HEAD=head, TAIL=tail, POLICY="evict_first", **layout, num_warps=plan.warps,
    )  # fmt: skip


def rmsnorm(x: Tensor, weight: Tensor, eps: float, plan: Plan | None = None) -> Tensor:
    """w * x / sqrt(mean(x²) + eps) over the last dim: x (..., D) of any strides, weight (D,); contiguous result."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, None, eps, plan)
    return out


def residual_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, plan: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """h = x + residual in x's dtype; returns (RMSNorm(h), contiguous; h, with x's strides)."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = empty_dense_like(x)
    _launch(x, residual, weight, out, h, eps, plan)
    return out, h
