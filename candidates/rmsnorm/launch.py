"""RMSNorm on tensors: collapses the leading dims, picks tile sizes, launches. Imports only torch and Triton."""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.rmsnorm.kernels import DENSE, EVEN_STEPS, STRIDED, rmsnorm_long, rmsnorm_tile
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, require_one_dtype

LONG_ELEMENTS = 16384
"""Rows beyond this many elements are taken in two passes instead of being held in registers."""
_NARROW_ELEMENTS = 512
_NARROW_TILE = 1024
_LOADS_PER_THREAD = 48
_FEW_PER_SM, _WAVE_PER_SM = 2, 16


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel that holds rows in registers."""

    rows: int
    warps: int


def make_plan(rows: int, width: int, inputs: int, sm_count: int) -> Plan:
    """The tile for `rows` rows of `width` elements, read from `inputs` (1 or 2) tensors. As measured on an H200:

    * Narrow rows: four warps that load 16 bytes a thread. 65536 rows of 128 take 10.02 µs behind another kernel so,
      10.12 with twice the rows a program, 11.73 in programs of one warp and four rows.
    * Else one row per program, 16 loaded elements per thread: 2048 rows of 1024 take 4.07 with two warps, 4.31 with
      four for two rows. Long rows stay with four warps, up to 48 loaded elements per thread: beyond that a thread's
      registers cost rows in flight, and more warps wait longer for each other (512x5120: 4.67, with eight 4.75).
    * A few rows at least four warps, since latency is all that counts there (1x2048: 1.64, with two 1.67).
    * Two warps where they have all rows on the GPU in one wave, 16 programs per SM, and four would begin a second:
      2048x2048 takes 6.11 so, 6.37 with four. 8192x2048, many waves either way, is at 18.23 with four, 18.48 with two.
    * Eight with a residual, where that leaves no thread idle (2048x2048: 10.27, with four 10.36, with two 10.62).
    """
    padded = sum(split_row(width, 4))
    if padded <= _NARROW_ELEMENTS:
        return Plan(_NARROW_TILE // padded, 4)
    most = 8 if inputs == 2 and split_row(width, 8)[1] == 0 else 4
    warps = min(max(inputs * padded // 512, 2), most)
    if rows <= _FEW_PER_SM * sm_count:
        warps = max(warps, 4)
    elif inputs == 1 and padded <= 2048 and rows <= _WAVE_PER_SM * sm_count:
        warps = 2
    while warps < 16 and inputs * sum(split_row(width, warps)) > _LOADS_PER_THREAD * 32 * warps:
        warps *= 2
    return Plan(1, warps)


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
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


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


def _layout(x: Tensor, operands: tuple[Tensor, ...]) -> tuple[int, int, int, list[int]]:
    """How rows lie (a constant of the kernels), the two inner of three leading sizes, four strides an operand."""
    if all(y.is_contiguous() for y in operands):
        return DENSE.value, 1, 1, [1] * 4 * len(operands)
    strides: list[int] = []
    steps = [even_step(y) for y in operands]
    if None not in steps:
        for y, step in zip(operands, steps, strict=True):
            strides += [1, 1, step or 0, y.stride(-1)]
        return EVEN_STEPS.value, 1, 1, strides
    counted = [i for i, size in enumerate(x.shape[:-1]) if size != 1]
    for y in operands:
        strides += [*_three([y.stride(i) for i in counted], 0), y.stride(-1)]
    _, n1, n2 = _three([x.shape[i] for i in counted], 1)
    return STRIDED.value, n1, n2, strides


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
    layout, n1, n2, strides = _layout(x, operands)
    formula = {
        "LAYOUT": layout, "RESIDUAL": residual is not None, "WEIGHT": weight is not None,
        "ROUND_FIRST": round_first, "EMULATE": x.device.type == "cpu",
    }  # fmt: skip
    tensors = (operands[0], operands[1], x if weight is None else weight.contiguous(), out, operands[2])
    if width > LONG_ELEMENTS:
        rmsnorm_long[(rows,)](*tensors, eps, width, n1, n2, *strides, BLOCK=8192, **formula, num_warps=16)
        return
    plan = plan or make_plan(rows, width, 1 if residual is None else 2, _sm_count(x.device))
    head, tail = split_row(width, plan.warps)
    rmsnorm_tile[(-(-rows // plan.rows),)](
        *tensors, eps, rows, n1, n2, *strides,
        D=width, ROWS=plan.rows, HEAD=head, TAIL=tail, EVEN=rows % plan.rows == 0, **formula, num_warps=plan.warps,
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
