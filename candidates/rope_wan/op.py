"""Rotary position embedding, as vllm-omni's `RotaryEmbeddingWan.forward_native` and the other forms models have of it.

| form          | authority                                                                                    |
|---------------|----------------------------------------------------------------------------------------------|
| `pair`        | vllm-omni `RotaryEmbeddingWan.forward_native` (half-width tables); diffusers' Wan and Helios |
|               | (full width, read at cos[0::2] and sin[1::2]); diffusers' LTX-2 (halves)                     |
| `rotate_half` | vllm-omni `RotaryEmbedding.forward_native` (half width, repeated inside); diffusers' FLUX,   |
|               | HunyuanVideo and LTX, transformers' Qwen3-Omni (full width)                                  |
| `complex`     | diffusers' Qwen-Image and Z-Image; `rotate_half` with half-width tables is its real twin     |

Arithmetic is in the wider of x's and the tables' dtype, one rounding for each operation, as PyTorch promotes: bf16
tables round each product to bf16.
"""

import torch
from torch import Tensor

from candidates.rope_wan.contexts import CONTEXTS
from candidates.rope_wan.problem import bytes_moved, inputs, problem
from candidates.rope_wan.tables import Form, Pairs, Width, beside_heads
from harness.op import Op


def native(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """x (B, S, H, D); cos and sin (S, W), (B, S, W) or (B, H, S, W), or c + i·s in `cos` alone; x's dtype and shape.

    The rotary dim R is W of full-width tables and 2·W of half-width ones; the rest of each head is left alone.
    """
    if sin is None:
        return _complex(x, cos)
    cos, sin = beside_heads(cos), beside_heads(sin)
    rotary_dim = cos.shape[-1] * (2 if width == Width.HALF else 1)
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if form == Form.PAIR:
        if width == Width.FULL:
            cos, sin = cos[..., 0::2], sin[..., 1::2]
        y = _pair(turned, cos, sin, pairs)
    else:
        if width == Width.HALF:
            cos, sin = _repeated(cos, pairs), _repeated(sin, pairs)
        y = turned * cos + _rotated(turned, pairs) * sin
    y = y.to(x.dtype)
    return y if rest.shape[-1] == 0 else torch.cat((y, rest), dim=-1)


def _complex(x: Tensor, freqs: Tensor) -> Tensor:
    acc = torch.promote_types(x.dtype, torch.float32)
    y = torch.view_as_complex(x.to(acc).unflatten(-1, (-1, 2))) * beside_heads(freqs)
    return torch.view_as_real(y).flatten(-2).to(x.dtype)


def _pair(x: Tensor, cos: Tensor, sin: Tensor, pairs: str) -> Tensor:
    if pairs == Pairs.INTERLEAVED:
        x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def _rotated(x: Tensor, pairs: str) -> Tensor:
    if pairs == Pairs.INTERLEAVED:
        x1, x2 = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((-x2, x1), dim=-1).flatten(-2)
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def _repeated(table: Tensor, pairs: str) -> Tensor:
    if pairs == Pairs.INTERLEAVED:
        return table.unsqueeze(-1).expand(*table.shape, 2).flatten(-2)
    return torch.cat((table, table), dim=-1)


def fake(x: Tensor, *rest: object, **named: object) -> Tensor:
    """Contiguous, like x; whatever form the tables have."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


OP = Op(
    id="rope_wan",
    dims=(("B", "S", "H", "D"),),
    params={
        "form": str,
        "pairs": str,
        "width": str,
        "table_dtype": str,
        "positions": str,
        "rotary_dim": int,
        "heads_per_kv": int,
    },
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=problem,
    contexts=CONTEXTS,
)
