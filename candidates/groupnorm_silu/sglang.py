"""sglang's GroupNorm + SiLU in Triton: one for contiguous tensors of any width, one for channels-last."""

import math

import torch
from torch import Tensor

from candidates._providers import sglang
from harness.op import Device, candidate
from harness.schema.case import Case, Layout
from harness.schema.vocabulary import Contract, Kind

_GRID_LIMIT = 65535
"""CUDA's bound on a grid's second dim."""
_CHUNK = 8192
"""Elements per program of its chunked kernels."""
_CHUNKED_FROM = 1 << 18
"""Elements per group from which it splits groups into chunks."""


def _group_elements(case: Case) -> int:
    return case.numel // max(case.dims["N"] * int(case.params["groups"]), 1)


def _fits_grid(case: Case, device: Device) -> str | None:
    size = _group_elements(case)
    second_dim = math.ceil(size / _CHUNK) if size >= _CHUNKED_FROM else case.dims["N"]
    return (
        None if second_dim <= _GRID_LIMIT else f"grid of {second_dim} programs in its second dim is past CUDA's limit"
    )


def _contiguous_like(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@candidate(
    op="groupnorm_silu",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=(
        "_group_norm_silu_contiguous_kernel|_group_norm_stats_kernel",
        "_group_norm_silu_contiguous_kernel|_group_norm_apply_(scalar_affine_)?kernel",
    ),
    contract=Contract.TOLERANCE,
    guard=_fits_grid,
    fake=_contiguous_like,
)
def triton_group_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """x (N, C, ...) of any layout; the output is contiguous. A copy to contiguous, where x needs one, is timed."""
    run = sglang.function("ops.diffusion.norm.group_norm_silu_triton", "triton_group_norm_silu")
    y: Tensor = run(x, weight, bias, groups, eps)
    return y


_MAX_CHANNELS = 2048


def _channels_last_power_of_two(case: Case, device: Device) -> str | None:
    channels = case.dims["C"]
    if case.layout is not Layout.CHANNELS_LAST:
        return f"takes channels-last tensors only, the case is {case.layout}"
    if channels & (channels - 1) or channels > _MAX_CHANNELS:
        return f"C={channels} is no power of two up to {_MAX_CHANNELS}"
    if case.dims["N"] > _GRID_LIMIT:
        return f"N={case.dims['N']} is past CUDA's limit on a grid's second dim"
    return None


@candidate(
    op="groupnorm_silu",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_gn_partial_rows_kernel", "_gn_finalize_kernel", "_gn_apply_rows_kernel"),
    contract=Contract.TOLERANCE,
    guard=_channels_last_power_of_two,
)
def group_norm_silu_rows(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """x (N, C, H, W) or (N, C, T, H, W), channels-last in and out, seen as (N, positions, C) without a copy.

    sglang's `group_norm_silu_4d` is this function on that view of a 4-D tensor.
    """
    run = sglang.function("ops.diffusion.norm.group_norm_silu_twopass_triton", "group_norm_silu_rows")
    last = x.movedim(1, -1)
    y: Tensor = run(last.flatten(1, -2), weight, bias, groups, eps)
    return y.view(last.shape).movedim(-1, 1)
