"""QK-norm + RoPE as models compute it where that is not the op's own formula, bit for bit."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[Tensor, Tensor]


def torch_norm(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> Pair:  # fmt: skip
    """`torch.nn.RMSNorm`, then interleaved pairs with tables (S, D) or (B, S, D) that repeat every value."""

    def one(x: Tensor, weight: Tensor) -> Tensor:
        if across_heads:
            normed = F.rms_norm(x.flatten(2), tuple(weight.shape), weight, eps).view(x.shape)
        else:
            normed = F.rms_norm(x, tuple(weight.shape), weight, eps)
        first, second = normed.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((-second, first), dim=-1).flatten(-2)
        return (normed * cos.unsqueeze(-2) + turned * sin.unsqueeze(-2)).to(x.dtype)

    return _both(one, q, k, q_weight, k_weight)


def complex_tables(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> Pair:  # fmt: skip
    """diffusers' RMSNorm, then a product with cos + i sin, (S, D / 2) or (B, S, D / 2), in complex arithmetic."""
    factors = torch.complex(cos, sin).unsqueeze(-2)

    def one(x: Tensor, weight: Tensor) -> Tensor:
        acc = torch.promote_types(x.dtype, torch.float32)
        variance = x.to(acc).pow(2).mean(dim=-1, keepdim=True)
        normed = (x * torch.rsqrt(variance + eps)).to(x.dtype) * weight
        product = torch.view_as_complex(normed.to(acc).unflatten(-1, (-1, 2))) * factors
        return torch.view_as_real(product).flatten(-2).to(x.dtype)

    return _both(one, q, k, q_weight, k_weight)


def _both(one: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor) -> Pair:
    return one(q, q_weight), one(k, k_weight)
