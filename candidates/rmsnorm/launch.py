"""RMSNorm on tensors: collapses the leading dims, picks tile sizes, launches. Imports only torch and Triton."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm.kernels import rmsnorm_long, rmsnorm_tile
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, require_one_dtype

LONG_ELEMENTS = 16384
"""Rows beyond this many elements are taken in two passes instead of being held in registers."""
_TILE_ELEMENTS = 2048
_LOADS_PER_THREAD = 48
_RESIDENT_ELEMENTS_PER_SM = 16384


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel that holds rows in registers."""

    rows: int
    warps: int
    early: bool
    """Whether the next kernel may be launched when this one starts, instead of when it has read its rows."""


def make_plan(rows: int, width: int, inputs: int, sm_count: int) -> Plan:
    """The tile for `rows` rows of `width` elements, read from `inputs` (1 or 2) tensors. As measured on an H200:

    * Four warps, 16 elements per thread or more when a row is longer: a row per SM less in flight costs more than a
      thread with much to do. Only beyond 48 loaded elements per thread does a thread's share of the registers cost
      rows in flight.
    * Where that makes fewer programs than there are SMs, half the tile: latency is all that counts there.
    * Launching the next kernel early hides its launch whole, but its waiting programs hold registers. That pays while
      both launches fit on the GPU together: an element takes two registers, of 65536 per SM.
    """
    warps = 4
    while warps < 16 and inputs * sum(split_row(width, warps)) > _LOADS_PER_THREAD * 32 * warps:
        warps *= 2
    tile = max(_TILE_ELEMENTS // sum(split_row(width, warps)), 1)
    if rows <= tile * (sm_count - 1):
        tile = max(tile // 2, 1)
    return Plan(tile, warps, early=rows * width <= _RESIDENT_ELEMENTS_PER_SM * sm_count)


def split_row(width: int, warps: int) -> tuple[int, int]:
    """Largest power of two that is not above `width`, and the rest padded to a power of two (or 0).

    The tail has eight elements per thread, up to the size of the head: then each thread accesses 16 bytes at a time
    in both, and they share a layout, so that nothing is exchanged between threads where their squares are added.
    """
    head = 1 << (width.bit_length() - 1)
    rest = width - head
    if rest == 0:
        return head, 0
    return head, max(1 << (rest - 1).bit_length(), min(256 * warps, head))


@cache
def _limits(device: torch.device) -> tuple[int, bool]:
    """SM count, and whether a kernel may be launched before its predecessor has ended (PDL, Hopper on)."""
    if device.type != "cuda":
        return 1, False
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major >= 9


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


def _three(values: list[int], filler: int) -> list[int]:
    """Two or three values as three: dividing a row's number by a middle size of 1 costs nothing."""
    first, *middle, last = values
    return [first, *(middle or [filler]), last]


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    out: Tensor,
    h: Tensor | None,
    eps: float,
    rounding: str,
    plan: Plan | None,
) -> None:
    if x.numel() == 0:
        return
    if x.ndim > 4:
        raise ValueError(f"x has {x.ndim} dims; these kernels take (T, D) to (B, S, H, D)")
    round_first = rounding == BEFORE_WEIGHT
    if weight is not None and round_first:
        require_one_dtype(x, weight)
    width = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    # a tensor that is not there is never touched; x stands in for it
    operands = (x, x if residual is None else residual, x if h is None else h)
    steps = [even_step(y) for y in operands]
    collapsed = None not in steps
    counted = [i for i, size in enumerate(x.shape[:-1]) if size != 1]
    strides: list[int] = []
    for y, step in zip(operands, steps, strict=True):
        strides += [0, 0, step or 0] if collapsed else _three([y.stride(i) for i in counted], 0)
        strides.append(y.stride(-1))
    _, n1, n2 = (1, 1, 1) if collapsed else _three([x.shape[i] for i in counted], 1)
    sm_count, pdl = _limits(x.device)
    layout = {"COLLAPSED": collapsed, "RESIDUAL": residual is not None, "PDL": pdl}
    formula = {"WEIGHT": weight is not None, "ROUND_FIRST": round_first, "EMULATE": x.device.type == "cpu"}
    tensors = (operands[0], operands[1], x if weight is None else weight.contiguous(), out, operands[2])
    if width > LONG_ELEMENTS:
        rmsnorm_long[(rows,)](
            *tensors, eps, width, n1, n2, *strides, BLOCK=8192, **layout, **formula, num_warps=16, launch_pdl=pdl
        )  # fmt: skip
        return
    plan = plan or make_plan(rows, width, 1 if residual is None else 2, sm_count)
    head, tail = split_row(width, plan.warps)
    rmsnorm_tile[(-(-rows // plan.rows),)](
        *tensors, eps, 1 / width, rows, width, n1, n2, *strides,
        ROWS=plan.rows, HEAD=head, TAIL=tail, EARLY=plan.early, **layout, **formula,
        num_warps=plan.warps, launch_pdl=pdl,
    )  # fmt: skip


def rmsnorm(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE, plan: Plan | None = None) -> Tensor:
    """w * x / sqrt(mean(x²) + eps) over the last dim: x (..., D) of any strides, weight (D,); contiguous result.

    Raises ValueError where `candidates.rmsnorm.op.native` does for the dtypes, and for more than four dims.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, None, weight, out, None, eps, rounding, plan)
    return out


def residual_rmsnorm(
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    residual: Tensor,
    rounding: str = ONCE,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """h = x + residual in x's dtype; returns (RMSNorm(h), contiguous; h, with x's strides). Raises as `rmsnorm`."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    h = empty_dense_like(x)
    _launch(x, residual, weight, out, h, eps, rounding, plan)
    return out, h
