"""What the launchers of LayerNorm kernels share: rows of x as (B, S), and modulations as rows shared by tokens."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_ROWS = 2**31 - 2**12
"""Rows are counted in 32 bits, up to the end of the last program's tile."""


@dataclass(frozen=True)
class Rows:
    """x (B, S, D) or (T, D) as B * S rows."""

    batches: int
    tokens: int
    width: int
    strides: tuple[int, int, int]
    """Of batch, token and column, in elements."""

    @property
    def count(self) -> int:
        """Rows in all."""
        return self.batches * self.tokens


def rows_of(x: Tensor) -> Rows:
    """Raises ValueError unless x is (B, S, D) or (T, D) of fewer than some 2^31 rows."""
    if x.ndim not in (2, 3):
        raise ValueError(f"x has {x.ndim} dims; these kernels take (T, D) and (B, S, D)")
    if math.prod(x.shape[:-1]) > _MOST_ROWS:
        raise ValueError(f"x has {math.prod(x.shape[:-1]):,} rows; these kernels count up to {_MOST_ROWS:,}")
    shape, strides = (1, *x.shape)[-3:], (0, *x.stride())[-3:]
    return Rows(shape[0], shape[1], shape[2], (strides[0], strides[1], strides[2]))


@dataclass(frozen=True)
class Shared:
    """A modulation (scale, shift, gate), or an affine weight: `tokens` neighbouring tokens share one of its rows."""

    tensor: Tensor
    batch_stride: int
    group_stride: int
    tokens: int

    @property
    def arguments(self) -> tuple[int, int, int]:
        """What a kernel needs to find a token's row."""
        return self.batch_stride, self.group_stride, self.tokens


def affine(weight: Tensor, rows: Rows) -> Shared:
    """weight (D,), the same for every row."""
    return Shared(weight.contiguous(), 0, 0, rows.tokens)


def modulation(m: Tensor, rows: Rows) -> Shared:
    """m as (B, D), (B, 1, D), (B, S, D) or per frame (B, F, 1, D); a first dim of 1 serves every batch.

    Raises ValueError for any other shape: a modulation that is read with another one's granularity is silently wrong.
    """
    groups = 1 if m.ndim == 2 else m.shape[1] if m.ndim in (3, 4) else 0
    fits = groups > 0 and m.shape[-1] == rows.width and m.shape[0] in (1, rows.batches)
    fits = fits and rows.tokens % groups == 0 and (m.ndim != 3 or groups in (1, rows.tokens))
    if not fits or (m.ndim == 4 and m.shape[2] != 1):
        raise ValueError(
            f"a modulation of shape {tuple(m.shape)} does not fit x ({rows.batches}, {rows.tokens}, {rows.width}); "
            "it must be (B, D), (B, 1, D), (B, S, D) or (B, F, 1, D) with F dividing S"
        )
    if m.stride(-1) != 1:
        m = m.contiguous()
    return Shared(
        m,
        0 if m.shape[0] == 1 else m.stride(0),
        0 if groups == 1 else m.stride(1),
        max(rows.tokens // groups, 1),
    )


def addresses(rows: Rows, residual: Rows, modulations: tuple[Shared, ...]) -> tuple[bool, list[int]]:
    """Where a kernel finds the rows of x, of the residual and of the modulations: (EVEN, its arguments from S on).

    EVEN: in every tensor the distance of a row to the next is one number (0 where all rows share one), and rows are
    dense. It stands in the place of the token's stride then, and of the group's.
    """
    steps = [_dense_step(rows), _dense_step(residual), *(_shared_step(rows, shared) for shared in modulations)]
    even = [step for step in steps if step is not None]
    if len(even) == len(steps):
        return True, [1, *(value for step in even for value in (0, step, 1))]
    groups = (value for shared in modulations for value in shared.arguments)
    return False, [rows.tokens, *rows.strides, *residual.strides, *groups]


def _even_step(rows: Rows, batch: int, token: int) -> int | None:
    """Distance of a row to the next at these strides of batch and token; None where that is not one number."""
    if rows.tokens == 1:
        return batch
    return token if rows.batches == 1 or batch == rows.tokens * token else None


def _dense_step(rows: Rows) -> int | None:
    """The same for a tensor of rows, which must be dense too."""
    batch, token, column = rows.strides
    return _even_step(rows, batch, token) if column == 1 else None


def _shared_step(rows: Rows, shared: Shared) -> int | None:
    """The same for a modulation: 0 where all rows share one."""
    in_groups = shared.group_stride != 0 and shared.tokens > 1
    return None if in_groups else _even_step(rows, shared.batch_stride, shared.group_stride)


def contiguous_like(x: Tensor) -> Tensor:
    """Uninitialised, contiguous, x's shape and dtype."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def is_empty(x: Tensor) -> bool:
    """Whether there is nothing to launch."""
    return math.prod(x.shape) == 0
