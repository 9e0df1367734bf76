"""QK-RMSNorm + RoPE on tensors: picks tile sizes, launches. Imports only torch and Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Table
from candidates.qknorm_rope.kernels import qknorm_rope_heads, qknorm_rope_tokens

TILE_ELEMENTS = 4096
"""Elements of q or k that a program of the per-head kernel keeps in registers, where there are many."""
SMALLEST_TILE = 1024
WANTED_PROGRAMS = 512
"""About four for each multiprocessor of a large GPU: tiles shrink until there are so many."""
MAX_ROW_ELEMENTS = 1 << 14
"""Widest row that one program keeps in registers."""


def power_above(n: int) -> int:
    """Smallest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


def split(n: int) -> tuple[int, int]:
    """Largest power of two that is not above `n`, and the rest padded to a power of two (or 0)."""
    head = 1 << (n.bit_length() - 1)
    return head, power_above(n - head) if n > head else 0


@dataclass(frozen=True)
class Tile:
    """Heads and tokens that one program of the per-head kernel takes."""

    tokens: int
    heads: int

    def programs(self, tokens: int, heads: int) -> int:
        """Programs for so many tokens of so many heads."""
        return -(-tokens // self.tokens) * -(-heads // self.heads)


def tile_elements(total: int) -> int:
    """Elements of a tile, a power of two, when there are `total` of q and k together."""
    return min(max(1 << (max(total // WANTED_PROGRAMS, 1).bit_length() - 1), SMALLEST_TILE), TILE_ELEMENTS)


def make_tile(tokens: int, heads: int, rows: int) -> Tile:
    """Up to eight heads, as many as leave few of the rows idle, and tokens to make `rows` (a power of two) of them."""
    widest = min(power_above(heads), rows, 8)
    choices = (1 << i for i in range(widest.bit_length() - 1, -1, -1))
    chosen = next(n for n in choices if -(-heads // n) * n <= 1.15 * heads)
    return Tile(tokens=min(rows // chosen, power_above(tokens)), heads=chosen)


def _warps(elements: int) -> int:
    """Eight elements of 16 bits are one access of a thread; four such accesses of each thread are in flight."""
    return min(max(elements // 1024, 1), 16)


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, across_heads: bool) -> None:
    if q.ndim != 4 or k.ndim != 4 or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} are not (B, S, H, D) and (B, S, KV, D)")
    batched = (*q.shape[:2], cos.shape[-1])
    if cos.shape not in (batched, batched[1:]) or sin.shape != cos.shape:
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} are not two of {batched[1:]} or {batched}")
    row = q.shape[3] * (q.shape[2] if across_heads else 1)
    if row > MAX_ROW_ELEMENTS:
        raise ValueError(f"a norm over {row} elements is more than {MAX_ROW_ELEMENTS}")


def qknorm_rope_into(
    q_out: Tensor, k_out: Tensor, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor,
    eps: float, across_heads: bool, pairs: str, table: str,
) -> None:  # fmt: skip
    """Write RoPE(RMSNorm(q)) and (k) into q_out and k_out, whose heads must be dense; all else of any strides.

    q, q_out (B, S, H, D); k, k_out (B, S, KV, D); weights (D,) or (heads * D,); cos, sin (S, W) or (B, S, W).
    Raises ValueError for shapes that do not fit together, or a norm too wide for registers.
    """
    _check(q, k, cos, sin, across_heads)
    batch, seq, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    if q.numel() == 0:
        return
    assert q_out.stride(3) == 1
    assert k_out.stride(3) == 1
    # the second copy of a half-split table is far from the first: it need not be read
    full = table == Table.FULL or (table == Table.REPEATED and pairs == Pairs.INTERLEAVED)
    rotary_dim = cos.shape[-1] * (2 if table == Table.HALF else 1)
    cos, sin, q_weight, k_weight = (y.contiguous() for y in (cos, sin, q_weight, k_weight))
    tensors = (q, k, q_weight, k_weight, cos, sin, q_out, k_out)
    table_strides = (cos.stride(0) if cos.ndim == 3 else 0, cos.stride(-2))
    strides = (*q.stride(), *k.stride(), *table_strides, *q_out.stride()[:3], *k_out.stride()[:3])
    constants = {
        "HALF": power_above(head_dim) // 2,
        "D": head_dim,
        "R": rotary_dim,
        "NEOX": pairs == Pairs.NEOX,
        "FULL": full,
    }
    tokens = batch * seq
    if across_heads or heads == kv_heads == 1:
        (q_heads, q_tail), (k_heads, k_tail) = split(heads), split(kv_heads)
        # eight elements of the tail per thread: heads and tail then share a layout, and no exchange is needed
        smallest = min(q_tail or q_heads, k_tail or k_heads) * power_above(head_dim)
        qknorm_rope_tokens[(2 * tokens,)](
            *tensors, eps, tokens, seq, heads, kv_heads, *strides,
            Q_HEADS=q_heads, Q_TAIL=q_tail, K_HEADS=k_heads, K_TAIL=k_tail, **constants,
            num_warps=min(max(smallest // 256, 1), 16),
        )  # fmt: skip
        return
    elements = tile_elements(q.numel() + k.numel())
    rows = max(elements // power_above(head_dim), 1)
    q_tile, k_tile = make_tile(tokens, heads, rows), make_tile(tokens, kv_heads, rows)
    q_blocks, k_blocks = q_tile.programs(tokens, heads), k_tile.programs(tokens, kv_heads)
    qknorm_rope_heads[(q_blocks + k_blocks,)](
        *tensors, eps, q_blocks, batch, seq, heads, kv_heads, *strides,
        Q_TOKENS=q_tile.tokens, Q_HEADS=q_tile.heads, K_TOKENS=k_tile.tokens, K_HEADS=k_tile.heads, **constants,
        num_warps=_warps(rows * power_above(head_dim)),
    )  # fmt: skip


def qknorm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(RoPE(RMSNorm(q)), RoPE(RMSNorm(k))), contiguous; see `qknorm_rope_into`."""
    q_out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k_out = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    qknorm_rope_into(q_out, k_out, q, k, q_weight, k_weight, cos, sin, eps, across_heads, pairs, table)
    return q_out, k_out
