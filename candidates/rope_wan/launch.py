"""Rotary embedding on tensors: views of the tables, a tile, the launch. Imports only torch and Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

from candidates.rope_wan.kernels import rope_tile
from candidates.rope_wan.tables import Form, Pairs, Width, halved

_TABLE_PAIRS = 512
"""Pairs of a large tensor's tile that have table values of their own: four for each of 128 threads, as of x's vectors
of eight elements, so that no value has to move between threads (seen in the machine code)."""
_TILE_HEADS = 8
"""Heads that share them: eight 16-byte loads of x in flight per thread."""
_SMALL_PROGRAMS = 264
"""Programs below which a tensor leaves SMs idle: two for each of an H200's 132."""
_SMALL_TILE = 256
"""Elements of one 16-byte load for each thread of a warp."""


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
    """Tile for (tokens, heads, width); a row's width is padded to a power of two.

    A power of two that divides the heads idles no lane.
    """
    padded = next_power_of_two(width)
    tile_tokens = min(max(2 * _TABLE_PAIRS // padded, 1), next_power_of_two(tokens))
    tile_heads = min(next_power_of_two(heads), _TILE_HEADS, max(8 * 2 * _TABLE_PAIRS // padded, 1))
    divisor = heads & -heads
    if 4 <= divisor < tile_heads:
        tile_heads = divisor
    while (
        _programs(tokens, heads, tile_tokens, tile_heads) < _SMALL_PROGRAMS
        and tile_tokens * tile_heads > 1
        and tile_tokens * tile_heads * padded > _SMALL_TILE
    ):
        if tile_tokens > 1:
            tile_tokens //= 2
        else:
            tile_heads //= 2
    return Plan(tile_tokens, tile_heads, warps=min(max(tile_tokens * tile_heads * padded // 512, 1), 4))


def _programs(tokens: int, heads: int, tile_tokens: int, tile_heads: int) -> int:
    return -(-tokens // tile_tokens) * -(-heads // tile_heads)


def _kernel_tables(cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> tuple[Tensor, Tensor, str]:
    """cos and sin as views that the kernel takes, and its TABLES; interleaved ones are read in whole vectors."""
    if sin is None:
        both = torch.view_as_real(cos).flatten(-2)
        return both, both, "complex"
    if width == Width.FULL and pairs == Pairs.INTERLEAVED:
        return cos, sin, "pair" if form == Form.PAIR else "elementwise"
    return *halved(cos, sin, pairs, width), "half"


def _table_strides(table: Tensor, batch: int, tokens: int, columns: int) -> tuple[int, int, int, int]:
    """Strides by batch, token, head and column of a table, 0 where it does not differ."""
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
    x: Tensor, out: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str,
    plan: Plan | None = None, second: tuple[Tensor, Tensor] | None = None, group: int = 0,
) -> None:  # fmt: skip
    """Rotate x (B, S, H, D) into out, indexed alike; heads of out are grouped when it is (B, S, H/group, group, D)."""
    B, S, H, D = x.shape
    if x.numel() == 0:
        return
    cos, sin, tables = _kernel_tables(cos, sin, form, pairs, width)
    columns = cos.shape[-1]
    pair_count = columns if tables == "half" else columns // 2
    if 2 * pair_count > D:
        raise ValueError(f"the tables turn {2 * pair_count} elements of a head, x has {D}")
    x2, out2 = second if second else (x, out)
    H2 = x2.shape[2] if second else 0
    plan = plan or make_plan(B * S, H + H2, D)
    heads2 = min(plan.heads, next_power_of_two(H2)) if H2 else 0
    blocks_s, blocks_h = -(-S // plan.tokens), -(-H // plan.heads)
    blocks_h2 = -(-H2 // heads2) if heads2 else 0
    o_b, o_s, *head_strides, _ = out.stride()
    o_group, o_h = head_strides if group else (0, head_strides[0])
    rest = D - 2 * pair_count
    rope_tile[(B * blocks_s * (blocks_h + blocks_h2),)](
        x, out, x2, out2, cos, sin, S, H, H2, blocks_s, blocks_h, blocks_h2,
        *x.stride(), o_b, o_s, o_h, o_group, *x2.stride(), *(out2.stride()[:3] if second else (0, 0, 0)),
        *_table_strides(cos, B, S, columns), *_table_strides(sin, B, S, columns),
        D=D, PAIRS=pair_count, PAIRS_PADDED=next_power_of_two(pair_count), TAIL=next_power_of_two(rest) if rest else 0,
        TOKENS=plan.tokens, HEADS=plan.heads, HEADS2=heads2, GROUP=group, INTERLEAVED=pairs == Pairs.INTERLEAVED,
        PER_HEAD=cos.ndim == 4, TABLES=tables, ROUND_PRODUCTS=x.dtype == cos.dtype != torch.float32,
        num_warps=plan.warps, enable_fp_fusion=False,
    )  # fmt: skip


def rope(
    x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str, plan: Plan | None = None
) -> Tensor:
    """x (B, S, H, D) of any strides with tables as `candidates.rope_wan.op.native` takes them; contiguous result."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, out, cos, sin, form, pairs, width, plan)
    return out


def rope_qk(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str, plan: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """q (B, S, H, D) and k (B, S, H2, D) with the same tables in one launch; contiguous results."""
    out_q, out_k = (torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in (q, k))
    _launch(q, out_q, cos, sin, form, pairs, width, plan, second=(k, out_k))
    return out_q, out_k


def rope_joint(
    x: Tensor, cos: Tensor, sin: Tensor | None, text: Tensor, cos_text: Tensor, sin_text: Tensor | None,
    form: str, pairs: str, width: str,
) -> Tensor:  # fmt: skip
    """text (B, T, H, D) and x (B, S, H, D), each with its tables, written one after the other: (B, T + S, H, D)."""
    B, S, H, D = x.shape
    tokens = text.shape[1]
    out = torch.empty((B, tokens + S, H, D), dtype=x.dtype, device=x.device)
    _launch(text, out[:, :tokens], cos_text, sin_text, form, pairs, width)
    _launch(x, out[:, tokens:], cos, sin, form, pairs, width)
    return out


def rope_packed(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str, ranks: int) -> Tensor:
    """x (B, S, H, D) rotated and packed for an all-to-all that scatters heads: contiguous (ranks, S, B, H/ranks, D)."""
    B, S, H, D = x.shape
    group = H // ranks
    out = torch.empty((ranks, S, B, group, D), dtype=x.dtype, device=x.device)
    _launch(x, out.permute(2, 1, 0, 3, 4), cos, sin, form, pairs, width, group=group)
    return out
