"""QK-RMSNorm + RoPE on tensors: picks tile sizes, launches. Imports only torch and Triton."""

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Table
from candidates.qknorm_rope.kernels import qknorm_rope_heads, qknorm_rope_tokens

TILE_ELEMENTS = 2048
"""Elements of q or k that a program of the per-head kernel keeps in registers, where there are many."""
SMALLEST_TILE = 512
WANTED_PROGRAMS = 528
"""Four for each multiprocessor of an H200: tiles shrink until there are so many."""
GROUPS_WANTED = 5
"""Groups of heads up to which all of a token fits the registers of few warps: 40 elements of x for each thread."""
MAX_ROW_ELEMENTS = 1 << 14
"""Widest row that one program keeps in registers."""


def power_above(n: int) -> int:
    """Smallest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


def make_rows(rows: int, padded: int) -> int:
    """Heads that a program of the per-head kernel takes, a power of two, of `rows` of q and k together.

    Two accesses of 16 bytes are in flight for each thread, one where there is little to do.
    """
    tile = TILE_ELEMENTS
    while rows * padded < WANTED_PROGRAMS * tile and tile > SMALLEST_TILE:
        tile //= 2
    return max(tile // padded, 1)


def make_group(heads: int, padded: int) -> int:
    """Heads that the across-heads kernel loads at once, a power of two: eight elements for each thread of its warps.

    As few are idle in the last group as can be, then at most GROUPS_WANTED groups, then the smallest such group.
    """
    choices = [1 << i for i in range(power_above(heads).bit_length()) if 256 <= padded << i <= 16 * 256]
    return min(
        choices or [max(256 // padded, 1)],
        key=lambda group: (-(-heads // group) * group, max(-(-heads // group), GROUPS_WANTED), group),
    )


def _warps(elements: int) -> int:
    """Sixteen elements of 16 bits for each thread, eight in the smallest tiles."""
    return min(max(elements // (512 if elements > SMALLEST_TILE else 256), 1), 16)


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
        "TABLE": str(Table(table)),
    }
    tokens, padded = batch * seq, power_above(head_dim)
    # A token's row of the tables then serves its heads from registers: from L1, head by head, fp32 ones of full width
    # are four times as long as the head.
    by_token = pairs == Pairs.INTERLEAVED and heads == kv_heads and 2 * tokens >= WANTED_PROGRAMS
    if across_heads or (by_token and heads * padded <= MAX_ROW_ELEMENTS):
        group = make_group(max(heads, kv_heads), padded)
        qknorm_rope_tokens[(2 * tokens,)](
            *tensors, eps, tokens, seq, *strides, H=heads, KV=kv_heads, ACROSS=across_heads, GROUP=group, **constants,
            num_warps=min(max(group * padded // 256, 1), 16),
        )  # fmt: skip
        return
    rows = make_rows(tokens * (heads + kv_heads), padded)
    programs = sum(-(-tokens * n // rows) for n in (heads, kv_heads))
    qknorm_rope_heads[(programs,)](
        *tensors, eps, tokens, seq, *strides, H=heads, KV=kv_heads, ROWS=rows, ONE_BATCH=batch == 1, **constants,
        num_warps=_warps(rows * padded),
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
