"""Rotary embedding on tensors: views of the tables, a tile, the launch. Imports only torch and Triton."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from candidates.rope_wan.kernels import rope_tile
from candidates.rope_wan.tables import Form, Pairs, Width, halved

_TILE = 1024
"""Elements that a program loads at once: a 16-byte vector of bf16 for each of 128 threads."""
_SMALL_TILE = 256
"""The same for a warp."""
_SMALL_PROGRAMS = 264
"""Programs below which a tensor leaves SMs idle: two for each of an H200's 132."""
_WIDE_TABLES = 4
"""Bytes of tables for a byte of x in a row, from which on heads share them: fp32, one column for each element."""
_FEW_HEADS = 24
"""Heads up to which reading wide tables from memory takes longer than handing them out to every head (reckoned)."""
_MOST_HEADS = 6


@dataclass(frozen=True)
class Plan:
    """Rows of a program, its warps, and how many times it takes such rows, of one head each: 1 is rows in x's order."""

    tokens: int
    heads: int
    warps: int


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is not below n >= 1."""
    return 1 << (n - 1).bit_length()


def make_plan(batch: int, tokens: int, heads: int, loaded: int, table_share: float, divides: int = 0) -> Plan:
    """Tile for (batch, tokens, heads), `loaded` columns at once; tables have `table_share` times the bytes of x's row.

    `divides` is what a program's heads have to divide: the heads, but for q and k in one launch.

    Measured on an H200 behind another kernel, 32760 tokens of heads of 128: rows in x's order took 51.1 us at 12 heads
    and bf16 tables of half width, one head of eight tokens 51.6, four heads 52.6; at 40 heads 161.9, 163.7 and 163.5.
    With fp32 tables of full width they took 56.3 at 12 heads, six heads of eight tokens 57.7; but 173.8 at 40, where
    five heads took 168.5. By time per byte of x the two are even at 24 heads; none between was measured.
    """
    padded = next_power_of_two(loaded)
    tile = min(max(_TILE // padded, 1), next_power_of_two(tokens))
    while batch * -(-tokens // tile) * heads < _SMALL_PROGRAMS and tile > 1 and tile * padded > _SMALL_TILE:
        tile //= 2
    shared = 1
    if table_share >= _WIDE_TABLES and heads > _FEW_HEADS:
        shared = max(n for n in range(1, _MOST_HEADS + 1) if (divides or heads) % n == 0)
    return Plan(tile, shared, warps=min(max(tile * padded // 256, 1), 8))


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
    x2, out2 = second or (x, out)
    H2 = x2.shape[2] if second else 0
    interleaved, per_head = pairs == Pairs.INTERLEAVED, cos.ndim == 4
    padded = next_power_of_two(pair_count)
    if plan is None:
        table_bytes = columns * cos.element_size() * (1 if tables == "complex" else 2)
        share = 0.0 if per_head else table_bytes / (2 * pair_count * x.element_size())
        plan = make_plan(B, S, H + H2, padded * (2 if interleaved else 1), share, gcd(H, H2))
    blocks = -(-S // plan.tokens)
    o_b, o_s, *head_strides, _ = out.stride()
    o_group, o_h = head_strides if group else (0, head_strides[0])
    rest = D - 2 * pair_count
    rope_tile[(B * blocks * (H + H2) // plan.heads,)](
        x, out, x2, out2, cos, sin, S, blocks,
        *x.stride(), o_b, o_s, o_h, o_group, *x2.stride(), *(out2.stride()[:3] if second else (0, 0, 0)),
        *_table_strides(cos, B, S, columns), *_table_strides(sin, B, S, columns),
        H=H, H2=H2, D=D, PAIRS=pair_count, PADDED=padded, TAIL=next_power_of_two(rest) if rest else 0,
        TOKENS=plan.tokens, HEADS=plan.heads, ONE_BATCH=B == 1, GROUP=group, INTERLEAVED=interleaved,
        PER_HEAD=per_head, TABLES=tables, ROUND_PRODUCTS=x.dtype == cos.dtype != torch.float32,
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
