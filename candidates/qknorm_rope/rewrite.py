"""QK-norm + RoPE in plain PyTorch for torch.compile: real-valued, one expression per element, fp32 until the end.

Inductor makes one kernel each of q and k of this: an element and its partner are two loads of one flipped index, where
the usual form gathers strided halves, stacks them and rounds in between.
"""

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Table
from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


def _paired(x: Tensor, pairs: str) -> tuple[Tensor, int]:
    """x (..., R) with its pairs as a dim of 2, and that dim."""
    half = x.shape[-1] // 2
    return (x.unflatten(-1, (half, 2)), -1) if pairs == Pairs.INTERLEAVED else (x.unflatten(-1, (2, half)), -2)


def _partner(x: Tensor, pairs: str) -> Tensor:
    paired, dim = _paired(x, pairs)
    return paired.flip(dim).flatten(-2)


def _entries(values: Tensor, pairs: str, table: str, acc: torch.dtype) -> Tensor:
    """Table (..., W) with one entry per element and a dim for heads, (..., 1, R)."""
    if table == Table.HALF:
        values = values.unsqueeze(-1 if pairs == Pairs.INTERLEAVED else -2)
        values = values.expand(*values.shape[:-1], 2) if pairs == Pairs.INTERLEAVED else values.expand(
            *values.shape[:-2], 2, values.shape[-1]
        )  # fmt: skip
        values = values.flatten(-2)
    return values.unsqueeze(-2).to(acc)


def _one(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, across_heads: bool, pairs: str, table: str
) -> Tensor:
    acc = torch.promote_types(x.dtype, torch.float32)
    cos, sin = _entries(cos, pairs, table, acc), _entries(sin, pairs, table, acc)
    x_acc = x.to(acc)
    inverse_rms = torch.rsqrt(x_acc.square().mean(dim=(-2, -1) if across_heads else -1, keepdim=True) + eps)
    normed = x_acc * inverse_rms * (weight.view(x.shape[-2:]) if across_heads else weight).to(acc)
    rotary_dim = cos.shape[-1]
    rotary = normed[..., :rotary_dim]
    element = torch.arange(rotary_dim, device=x.device)
    is_first = element % 2 == 0 if pairs == Pairs.INTERLEAVED else element < rotary_dim // 2
    rotated = rotary * cos + _partner(rotary, pairs) * torch.where(is_first, -sin, sin)
    if rotary_dim < x.shape[-1]:
        rotated = torch.cat((rotated, normed[..., rotary_dim:]), dim=-1)
    return rotated.to(x.dtype)


@candidate(
    op="qknorm_rope", kind=Kind.REWRITE, provider=TORCH, kernels=(), contract=Contract.TOLERANCE, name="one_pass"
)
def one_pass(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q (B, S, H, D), k (B, S, KV, D); fp32 until the one rounding at the end whatever `rounding` asks."""
    conventions = (eps, across_heads, pairs, table)
    return _one(q, q_weight, cos, sin, *conventions), _one(k, k_weight, cos, sin, *conventions)
