"""What attentions hand to a wiring, and what they want back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


class Stream(NamedTuple):
    """q (B, S, H, D) and k (B, S, KV, D) of some tokens as projected, and the norms that are next."""

    q: Tensor
    k: Tensor
    norm_q: nn.Module
    norm_k: nn.Module


Turn = Callable[[tuple[Stream, ...], tuple[Any, ...]], Pair]
"""Streams, in the order in which they are joined, and the rotary tables as the model hands them on, one for each stream
or a single one of the joined tokens -> q and k as attention takes them, (B, S, H, D) of the joined tokens."""


def joined(pairs: Sequence[Pair]) -> Pair:
    """q and k of all streams one after the other."""
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([q for q, _ in pairs], dim=1), torch.cat([k for _, k in pairs], dim=1)


def across_heads(norm: nn.Module, x: Tensor) -> bool:
    """Whether the norm of x (B, S, H, D) is over all heads of a token together."""
    weight: Any = norm.weight
    return bool(weight.shape[0] != x.shape[-1])


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """The norm of x (B, S, H, D) by the model's own module."""
    y: Tensor = norm(x.flatten(2)).view(x.shape) if across_heads(norm, x) else norm(x)
    return y
