"""All-reduce + residual add + RMSNorm on tensors by our own kernels. Imports only torch and Triton."""

from functools import cache

import torch
from torch import Tensor

from candidates.allreduce_rmsnorm.collective import process_group
from candidates.allreduce_rmsnorm.kernels import allreduce_rmsnorm_one_shot, allreduce_rmsnorm_two_shot
from candidates.allreduce_rmsnorm.workspace import Workspace, workspace
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, require_one_dtype

MAX_WIDTH = 8192
"""Columns that one program holds, eight a thread."""
_REGISTERS = 64
"""A thread's limit: with it 32 warps fit on an SM of 65536 registers, so as many programs as `_programs` says run at
once, whatever the compiler does."""
_WARPS_PER_SM = 32


def tile(width: int) -> tuple[int, int]:
    """Columns of a program (a power of two) and its warps."""
    block = 1 << max(width - 1, 0).bit_length()
    return block, max(block // 256, 4)


@cache
def _sm_count(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def most_programs(device: torch.device) -> int:
    """Programs of four warps that the device runs at once: more are never launched."""
    return _sm_count(device) * _WARPS_PER_SM // 4


def grid(items: int, warps: int, space: Workspace) -> int:
    """Programs of a launch over `items` rows, the same on all ranks."""
    return min(items, space.programs * 4 // warps)


def half_bytes(rows: int, width: int, element: int, ranks: int, *, two_shot: bool) -> int:
    """What one launch leaves in a half of the buffer."""
    if two_shot:
        return (ranks * -(-rows // ranks) + rows) * width * element
    return ranks * rows * width * element


def fused(
    x: Tensor,
    weight: Tensor,
    eps: float,
    group: str,
    residual: Tensor | None,
    rounding: str = ONCE,
    *,
    two_shot: bool,
) -> tuple[Tensor, Tensor]:
    """(RMSNorm(h), h), contiguous, of h = the sum of x over the group + residual.

    x (T, D) with adjacent elements in a row, residual (T, D) contiguous, weight (D,). Same shapes on all ranks.
    Raises ValueError for rows that are not so, and as `candidates.rmsnorm.op.native` does for dtypes.
    """
    rows, width = x.shape
    if width > MAX_WIDTH or (width > 1 and x.stride(1) != 1):
        raise ValueError(f"x {tuple(x.shape)} with strides {x.stride()}: takes adjacent elements, {MAX_WIDTH} at most")
    round_first = rounding == BEFORE_WEIGHT
    if round_first:
        require_one_dtype(x, weight)
    out, h = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if x.numel() == 0:
        return out, h
    space = _space(x, group, two_shot)
    block, warps = tile(width)
    items = -(-rows // space.ranks) if two_shot else rows
    kernel = allreduce_rmsnorm_two_shot if two_shot else allreduce_rmsnorm_one_shot
    kernel[(grid(items, warps, space),)](
        x, x if residual is None else residual.contiguous(), weight.contiguous(), out, h, space.bases, space.state, eps,
        rows, width, x.stride(0), space.rank, space.flag_bytes, space.half_bytes, RANKS=space.ranks, BLOCK=block,
        RESIDUAL=residual is not None, ROUND_FIRST=round_first, EMULATE=x.device.type == "cpu",
        num_warps=warps, maxnreg=_REGISTERS,
    )  # fmt: skip
    return out, h


def _space(x: Tensor, group: str, two_shot: bool) -> Workspace:
    rows, width = x.shape
    needed = half_bytes(rows, width, x.element_size(), process_group(group).size(), two_shot=two_shot)
    return workspace(group, x.device, needed, most_programs(x.device))
