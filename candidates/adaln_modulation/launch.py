"""adaLN modulation on tensors: reads the tables' shapes, plans, launches our kernel. Imports only torch and Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.adaln_modulation.kernels import adaln_modulation_tile

_PROGRAM_ELEMENTS = 1024
"""A program's elements of x where rows are long enough: eight for each of 128 threads."""
_MOST_ROWS = 8


@dataclass(frozen=True)
class Plan:
    """Tokens and channels per program, and its warps."""

    rows: int
    columns: int
    warps: int


@dataclass(frozen=True)
class Table:
    """How a kernel finds a token's row: `per` is 0 (no table), 1 (group), 2 (token) or 3 (index)."""

    per: int
    batch: int = 0
    group: int = 0
    token: int = 0


def ceil_div(value: int, by: int) -> int:
    """value / by, rounded up."""
    return -(-value // by)


def make_plan(length: int, width: int) -> Plan:
    """Tile for groups of `length` tokens of `width` channels: 1024 elements of one token, of two where 512 fit better.

    Measured on an H200 behind another kernel: at 1536 channels (three times 512) two tokens took 49.7 us, with two
    warps and so with loads of 16 bytes 49.9, one token 61.9 (too many programs), eight 50.8; at 3072 one token by 1024
    took 14.25 us, two 14.42, one by 512 16.9; at 5120 one took 363.9, two 364.6.
    """
    fitting = [size for size in (1024, 512) if size <= width] or [1 << (width - 1).bit_length()]
    columns = min(fitting, key=lambda size: (ceil_div(width, size) * size, -size))
    rows = min(max(_PROGRAM_ELEMENTS // columns, 1), _MOST_ROWS, length)
    return Plan(rows, columns, warps=min(max(columns // 128, 1), 4))


def _stride(table: Tensor, dim: int) -> int:
    """Stride of a dim, 0 where there is one row for all."""
    return 0 if table.shape[dim] == 1 else table.stride(dim)


def describe(table: Tensor | None, x: Tensor, index: Tensor | None) -> Table:
    """(B, D) and (B, 1, D): per batch; (B, F, 1, D): per frame; (B, S, D): per token; (rows, D) with an index.

    Raises ValueError for a table that does not fit x (B, S, D) or, with an index, x (T, D).
    """
    if table is None:
        return Table(0)
    batch, tokens = (1, *x.shape[:-1])[-2:]
    shape, width = tuple(table.shape), x.shape[-1]
    if index is not None and table.ndim == 2 and shape[1] == width and tuple(index.shape) == (tokens,):
        return Table(3, token=table.stride(0))
    if index is None and x.ndim == 3 and shape[0] in (1, batch) and shape[-1] == width:
        if table.ndim == 2 or (table.ndim == 3 and shape[1] == 1):
            return Table(1, batch=_stride(table, 0))
        if table.ndim == 4 and shape[2] == 1 and tokens % max(shape[1], 1) == 0:
            return Table(1, batch=_stride(table, 0), group=_stride(table, 1))
        if table.ndim == 3 and shape[1] == tokens:
            return Table(2, batch=_stride(table, 0), token=table.stride(1))
    raise ValueError(f"a table of shape {shape} does not fit x of shape {tuple(x.shape)}")


def _leading(x: Tensor | None) -> tuple[int, int, int]:
    """Strides of (B, S, D); 0 for B of a (T, D) tensor."""
    if x is None:
        return 0, 0, 0
    return (0, x.stride(0), x.stride(1)) if x.ndim == 2 else (x.stride(0), x.stride(1), x.stride(2))


def _dense_rows(table: Tensor | None) -> Tensor | None:
    return table if table is None or table.stride(-1) == 1 or table.shape[-1] == 1 else table.contiguous()


def modulate(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """x * (scale_constant + scale) + shift, or residual + that: x (B, S, D) or (T, D) of any strides.

    Tables as `describe` says. Rounds as eager PyTorch does, so the result is its, bit for bit; strides are x's.
    Raises TypeError where the scale's dtype is not the shift's, or the residual's not x's.
    """
    if shift is not None and shift.dtype is not scale.dtype:
        raise TypeError(f"the scale is {scale.dtype} and the shift {shift.dtype}; give both one dtype")
    if residual is not None and residual.dtype is not x.dtype:
        raise TypeError(f"the residual is {residual.dtype} and x {x.dtype}; give both one dtype")
    out = empty_dense_like(x)
    scale_table, shift_table = describe(scale, x, index), describe(shift, x, index)
    if x.numel() == 0:
        return out
    batch, tokens = (1, *x.shape[:-1])[-2:]
    width = x.shape[-1]
    frames = {table.shape[1] for table in (scale, shift) if table is not None and table.ndim == 4} or {1}
    if len(frames) > 1:
        raise ValueError(f"scale and shift have {' and '.join(map(str, sorted(frames)))} frames; give both as many")
    groups = frames.pop()
    length = tokens // groups
    plan = plan or make_plan(length, width)
    tiles, columns = ceil_div(length, plan.rows), ceil_div(width, plan.columns)
    scale, shift = _dense_rows(scale), _dense_rows(shift)  # type: ignore[assignment]
    stepwise = scale.dtype is x.dtype and scale.dtype is not torch.float32 and not upcast
    # what is not there is never touched; x stands in for it
    adaln_modulation_tile[(batch * groups * tiles * columns,)](
        x, scale, x if shift is None else shift, x if residual is None else residual, x if index is None else index,
        out, float(scale_constant), groups, tiles, length, width,
        *_leading(x), *_leading(residual), *_leading(out),
        scale_table.batch, scale_table.group, scale_table.token,
        shift_table.batch, shift_table.group, shift_table.token, 0 if index is None else index.stride(0),
        ROWS=plan.rows, COLS=plan.columns, COLUMNS=columns, EVEN=width % plan.columns == 0,
        ONE_GROUP=batch * groups == 1, SCALE=scale_table.per, SHIFT=shift_table.per,
        RESIDUAL=residual is not None, CONSTANT=scale_constant != 0,
        ROUND_FACTOR=scale.dtype is not torch.float32 and not upcast, ROUND_PRODUCT=stepwise,
        EMULATE=x.device.type == "cpu", num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return out
