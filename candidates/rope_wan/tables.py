"""Rotary tables: the forms models keep them in, and the half-width views and layouts that kernels want of them."""

from enum import StrEnum

import torch
from torch import Tensor


class Form(StrEnum):
    """How a model writes the rotation down."""

    PAIR = "pair"
    """(x1·c - x2·s, x1·s + x2·c); full-width tables are read at cos[0::2] and sin[1::2]."""
    ROTATE_HALF = "rotate_half"
    """x·c + rotate(x)·s with full-width c and s, each element with the values of its own column."""
    COMPLEX = "complex"
    """(x1 + i·x2)·(c + i·s) in complex arithmetic; `cos` holds c + i·s and there is no `sin`."""


class Pairs(StrEnum):
    """Which elements of a head are rotated together."""

    INTERLEAVED = "interleaved"
    """(2i, 2i + 1), GPT-J."""
    HALVES = "halves"
    """(i, i + R/2), GPT-NeoX."""


class Width(StrEnum):
    """Columns of the tables for a rotary dim of R."""

    HALF = "half"
    """R/2: one column for each pair."""
    FULL = "full"
    """R: one column for each element."""


class Positions(StrEnum):
    """What the tables differ by, beside the token."""

    SHARED = "shared"
    """Nothing: (S, columns)."""
    PER_BATCH = "per_batch"
    """The sequence of the batch: (B, S, columns)."""
    PER_HEAD = "per_head"
    """The head too: (B, H, S, columns), heads before tokens as LTX-2 keeps them."""


def beside_heads(table: Tensor) -> Tensor:
    """A table (S, W), (B, S, W) or (B, H, S, W) as it broadcasts over x (B, S, H, D)."""
    return table.transpose(1, 2) if table.ndim == 4 else table.unsqueeze(-2)


def halved(cos: Tensor, sin: Tensor | None, pairs: str, width: str) -> tuple[Tensor, Tensor]:
    """cos and sin with one column for each pair: views, whatever form the tables have.

    Of interleaved full-width tables cos[0::2] and sin[1::2]: right for Form.PAIR as it is, and for Form.ROTATE_HALF
    because models repeat every value.
    """
    if sin is None:
        real = torch.view_as_real(cos)
        return real[..., 0], real[..., 1]
    if width == Width.HALF:
        return cos, sin
    if pairs == Pairs.INTERLEAVED:
        return cos[..., 0::2], sin[..., 1::2]
    columns = cos.shape[-1] // 2
    return cos[..., :columns], sin[..., :columns]


def rows(table: Tensor, batch: int) -> Tensor:
    """A table as contiguous rows: (S, W) repeated for each of `batch` sequences, (B, S, W) as (B * S, W)."""
    if table.ndim == 2:
        table = table.expand(batch, *table.shape)
    return table.reshape(-1, table.shape[-1]).contiguous()
