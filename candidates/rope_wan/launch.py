"""Rotary embedding on tensors: brings the tables to half width, picks a tile, launches. Imports only torch and Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

from candidates.rope_wan.kernels import rope_tile
from candidates.rope_wan.tables import Pairs, halved

_TILE_ELEMENTS = 8192
"""Elements of a tile of a large tensor: eight 16-byte loads for each of 128 threads."""
_TILE_HEADS = 8
_SMALL_PROGRAMS = 264
"""Programs below which a tensor leaves SMs idle: two for each of an H200's 132."""


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel and its warps."""

    tokens: int
    heads: int
    warps: int


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is not below n >= 1."""
    return 1 << (n - 1).bit_length()


def make_plan(tokens: int, heads: int, width: int) -> Plan:
    """Tile for (tokens, heads, width) with a row's width padded to a power of two.

    Heads of one tile share a row of the tables, so they come first; a divisor of the heads idles no lane.
    """
    padded = next_power_of_two(width)
    per_tile = max(_TILE_ELEMENTS // padded, 1)
    divisor = heads & -heads
    tile_heads = min(next_power_of_two(heads), _TILE_HEADS, per_tile)
    if 4 <= divisor < tile_heads:
        tile_heads = divisor
    tile_tokens = min(max(per_tile // tile_heads, 1), next_power_of_two(tokens))
    # launch-bound: smaller tiles until every SM has work
    while tile_tokens * tile_heads > 1 and _programs(tokens, heads, tile_tokens, tile_heads) < _SMALL_PROGRAMS:
        if tile_tokens * tile_heads * padded <= 1024:
            break
        if tile_tokens > 1:
            tile_tokens //= 2
        else:
            tile_heads //= 2
    elements = tile_tokens * tile_heads * padded
    return Plan(tile_tokens, tile_heads, warps=min(max(elements // 2048, 1), 4))


def _programs(tokens: int, heads: int, tile_tokens: int, tile_heads: int) -> int:
    return -(-tokens // tile_tokens) * -(-heads // tile_heads)


def _table_strides(table: Tensor, batch: int, tokens: int, columns: int) -> tuple[int, int, int, int]:
    """Strides by batch, token, head and column of a half-width table, 0 where it does not differ."""
    shapes = {2: (tokens, columns), 3: (batch, tokens, columns)}
    if table.ndim in shapes and tuple(table.shape) != shapes[table.ndim]:
        raise ValueError(f"the table is {tuple(table.shape)}, x wants {shapes[table.ndim]}")
    strides = table.stride()
    if table.ndim == 2:
        return 0, strides[0], 0, strides[1]
    if table.ndim == 3:
        return strides[0], strides[1], 0, strides[2]
    return strides[0], strides[2], strides[1], strides[3]


def _launch(
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, pairs: str, plan: Plan | None,
    second: tuple[Tensor, Tensor] | None = None, group: int = 0,
) -> None:  # fmt: skip
    """Rotate x (B, S, H, D) into out, indexed alike; heads of out are grouped when it is (B, S, H/group, group, D)."""
    B, S, H, D = x.shape
    if x.numel() == 0:
        return
    columns = cos.shape[-1]
    if 2 * columns > D:
        raise ValueError(f"the tables turn {2 * columns} elements of a head, x has {D}")
    x2, out2 = second if second else (x, out)
    H2 = x2.shape[2] if second else 0
    plan = plan or make_plan(B * S, H + H2, D)
    heads2 = min(plan.heads, next_power_of_two(H2)) if H2 else 0
    blocks_s, blocks_h = -(-S // plan.tokens), -(-H // plan.heads)
    blocks_h2 = -(-H2 // heads2) if heads2 else 0
    o_b, o_s, *head_strides, _ = out.stride()
    o_group, o_h = head_strides if group else (0, head_strides[0])
    rest = D - 2 * columns
    rope_tile[(B * blocks_s * (blocks_h + blocks_h2),)](
        x, out, x2, out2, cos, sin, S, H, H2, blocks_s, blocks_h, blocks_h2,
        *x.stride(), o_b, o_s, o_h, o_group, *x2.stride(), *(out2.stride()[:3] if second else (0, 0, 0)),
        *_table_strides(cos, B, S, columns), *_table_strides(sin, B, S, columns),
        D=D, PAIRS=columns, PAIRS_PADDED=next_power_of_two(columns), TAIL=next_power_of_two(rest) if rest else 0,
        TOKENS=plan.tokens, HEADS=plan.heads, HEADS2=heads2, GROUP=group, INTERLEAVED=pairs == Pairs.INTERLEAVED,
        PER_HEAD=cos.ndim == 4, ROUND_PRODUCTS=x.dtype == cos.dtype != torch.float32,
        num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip


def rope(x: Tensor, cos: Tensor, sin: Tensor | None, pairs: str, width: str, plan: Plan | None = None) -> Tensor:
    """x (B, S, H, D) of any strides with tables as `candidates.rope_wan.op.native` takes them; contiguous result."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, out, *halved(cos, sin, pairs, width), pairs, plan)
    return out


def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None, pairs: str, width: str, plan: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """q (B, S, H, D) and k (B, S, H2, D) with the same tables in one launch; contiguous results."""
    out_q, out_k = (torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in (q, k))
    _launch(q, out_q, *halved(cos, sin, pairs, width), pairs, plan, second=(k, out_k))
    return out_q, out_k


def rope_joint(
    x: Tensor, cos: Tensor, sin: Tensor | None, text: Tensor, cos_text: Tensor, sin_text: Tensor | None,
    pairs: str, width: str,
) -> Tensor:  # fmt: skip
    """text (B, T, H, D) and x (B, S, H, D), each with its tables, written one after the other: (B, T + S, H, D)."""
    B, S, H, D = x.shape
    tokens = text.shape[1]
    out = torch.empty((B, tokens + S, H, D), dtype=x.dtype, device=x.device)
    _launch(text, out[:, :tokens], *halved(cos_text, sin_text, pairs, width), pairs, None)
    _launch(x, out[:, tokens:], *halved(cos, sin, pairs, width), pairs, None)
    return out


def rope_packed(x: Tensor, cos: Tensor, sin: Tensor | None, pairs: str, width: str, ranks: int) -> Tensor:
    """x (B, S, H, D) rotated and packed for an all-to-all that scatters heads: contiguous (ranks, S, B, H/ranks, D)."""
    B, S, H, D = x.shape
    group = H // ranks
    out = torch.empty((ranks, S, B, group, D), dtype=x.dtype, device=x.device)
    _launch(x, out.permute(2, 1, 0, 3, 4), *halved(cos, sin, pairs, width), pairs, None, group=group)
    return out
