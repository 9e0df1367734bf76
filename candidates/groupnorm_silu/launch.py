"""GroupNorm+SiLU on a tensor: reads its geometry, plans, launches our Triton kernels. Imports only torch and Triton."""

from functools import cache

import torch
from torch import Tensor

from candidates.groupnorm_silu.kernels.flat import (
    groupnorm_silu_flat_apply,
    groupnorm_silu_flat_single,
    groupnorm_silu_flat_stats,
    groupnorm_silu_flat_waves,
)
from candidates.groupnorm_silu.kernels.rows import groupnorm_silu_rows_apply, groupnorm_silu_rows_stats
from candidates.groupnorm_silu.plan import Geometry, Path, Plan, ceil_div, make_plan, next_power_of_two

_INDEX64_ELEMENTS = 1 << 30
_REGISTERS = 65536
"""32-bit registers of an SM."""
READ_POLICY = ""


@cache
def _limits(device: torch.device) -> tuple[int, int, bool]:
    """SM count, L2 bytes, and whether a kernel may start before its predecessor has ended (PDL, Hopper on)."""
    if device.type != "cuda":
        return 1, 1 << 20, False
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.L2_cache_size, properties.major >= 9


def _five(values: tuple[int, ...], filler: int) -> tuple[int, int, int, int, int]:
    """(N, C, T, H, W) from the last dims that are there."""
    n, c, *spatial = values
    t, h, w = [filler] * (3 - len(spatial)) + spatial
    return n, c, t, h, w


def geometry_of(x: Tensor, out: Tensor, groups: int) -> Geometry:
    """x (N, C, ...) of two to five dims. Raises ValueError for more."""
    if not 2 <= x.ndim <= 5:
        raise ValueError(f"x has {x.ndim} dims; these kernels take (N, C) to (N, C, T, H, W)")
    sizes = _five(tuple(x.shape), 1)
    x_strides, out_strides = (
        _five(tuple(0 if size == 1 else step for size, step in zip(y.shape, y.stride(), strict=True)), 0)
        for y in (x, out)
    )
    return Geometry(sizes, x_strides, out_strides, groups, x.element_size())


def groupnorm_silu(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, plan: Plan | None = None
) -> Tensor:
    """SiLU(GroupNorm(x)): x (N, C, ...) in bf16, fp16 or fp32 and any strides, weight and bias (C,); fp32 inside.

    Returns a tensor with x's strides (dense ones in their order, where x has gaps). Forward only.
    """
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    geometry = geometry_of(x, out, groups)
    sm_count, l2_bytes, pdl = _limits(x.device)
    if plan is None:
        # Triton's interpreter runs one program after another: none may wait for a later one
        plan = make_plan(geometry, sm_count, l2_bytes, may_wait=x.is_cuda)
    weight, bias = weight.contiguous(), bias.contiguous()
    if plan.path is Path.ROWS:
        _rows(x, weight, bias, out, eps, geometry, plan, pdl)
    else:
        _flat(x, weight, bias, out, eps, geometry, plan, pdl)
    return out


def _flat(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float, geometry: Geometry, plan: Plan, pdl: bool
) -> None:
    group_count = geometry.sizes[0] * geometry.groups
    group = (geometry.groups, geometry.group_channels, geometry.spatial, *geometry.sizes[3:])
    layout = {"VEC": geometry.vector, "DENSE": geometry.dense}
    asm = x.is_cuda or x.is_meta
    strides = (*geometry.x_strides, *geometry.out_strides)
    if plan.path is Path.SINGLE:
        groupnorm_silu_flat_single[(group_count,)](
            x, weight, bias, out, eps, *group, *strides, BLOCK=plan.block, ASM=asm, **layout, num_warps=plan.warps
        )
        return
    layout["INDEX64"] = geometry.group_elements > _INDEX64_ELEMENTS
    chunks = plan.chunks
    mean, m2 = torch.empty((2, group_count, chunks), dtype=torch.float32, device=x.device)
    pad = next_power_of_two(chunks)
    if plan.path is Path.WAVES:
        arrived = torch.zeros(group_count, dtype=torch.int32, device=x.device)
        groupnorm_silu_flat_waves[(plan.wave * chunks,)](
            x, weight, bias, out, mean, m2, arrived, eps, group_count, chunks, plan.chunk, *group, *strides,
            WAVE=plan.wave, LAG=plan.lag, BLOCK=plan.block, UNROLL=plan.unroll, APPLY_BLOCK=plan.apply_block,
            CHUNKS_PAD=pad, ASM=asm, READ_POLICY=READ_POLICY, **layout,
            num_warps=plan.warps, maxnreg=_REGISTERS // (plan.programs_per_sm * 32 * plan.warps),
            launch_cooperative_grid=True,
        )  # fmt: skip
        return
    groupnorm_silu_flat_stats[(group_count * chunks,)](
        x, mean, m2, chunks, plan.chunk, *group, *geometry.x_strides,
        BLOCK=plan.block, UNROLL=plan.unroll, PDL=pdl, **layout, num_warps=plan.warps,
    )  # fmt: skip
    tiles = ceil_div(geometry.group_elements, plan.apply_block)
    groupnorm_silu_flat_apply[(group_count * tiles,)](
        x, weight, bias, out, mean, m2, eps, chunks, plan.chunk, tiles, *group, *strides,
        BLOCK=plan.apply_block, CHUNKS_PAD=pad, ASM=asm, PDL=pdl, **layout, num_warps=plan.apply_warps, launch_pdl=pdl,
    )  # fmt: skip


def _rows(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float, geometry: Geometry, plan: Plan, pdl: bool
) -> None:
    images, channels, _, height, width = geometry.sizes
    group_columns = next_power_of_two(geometry.group_channels)
    groups_per_block = plan.columns // group_columns
    blocks = ceil_div(geometry.groups, groups_per_block)
    row_strides = geometry.row_strides
    x_spatial, out_spatial = geometry.x_strides[2:], geometry.out_strides[2:]
    if row_strides is not None:
        x_spatial, out_spatial = ((0, 0, step) for step in row_strides)
    tile = {
        "CG": geometry.group_channels,
        "CGP": group_columns,
        "GB": groups_per_block,
        "SINGLE_STRIDE": row_strides is not None,
        "PDL": pdl,
    }
    shape = (channels, geometry.groups, geometry.spatial, height, width)
    mean, m2 = torch.empty((2, images * geometry.groups, plan.chunks), dtype=torch.float32, device=x.device)
    groupnorm_silu_rows_stats[(images * plan.chunks * blocks,)](
        x, mean, m2, plan.chunks, plan.chunk, blocks, *shape, geometry.x_strides[0], *x_spatial,
        BR=plan.block // plan.columns, UNROLL=plan.unroll, **tile, num_warps=plan.warps,
    )  # fmt: skip
    spans = ceil_div(geometry.spatial, plan.span)
    groupnorm_silu_rows_apply[(images * spans * blocks,)](
        x, weight, bias, out, mean, m2, eps, plan.chunks, plan.chunk, spans, plan.span, blocks, *shape,
        geometry.x_strides[0], *x_spatial, geometry.out_strides[0], *out_spatial,
        BR=plan.apply_block // plan.columns, CHUNKS_PAD=next_power_of_two(plan.chunks), ASM=x.is_cuda or x.is_meta, **tile,
        num_warps=plan.apply_warps, launch_pdl=pdl,
    )  # fmt: skip
