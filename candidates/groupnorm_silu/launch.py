"""GroupNorm+SiLU on a tensor: reads its geometry, plans, launches our Triton kernels. Imports only torch and Triton."""

from functools import cache

import torch
from torch import Tensor

from candidates._dense import empty_dense_like
from candidates.groupnorm_silu.kernels.flat import groupnorm_silu_flat_apply, groupnorm_silu_flat_stats
from candidates.groupnorm_silu.kernels.flat_resident import groupnorm_silu_flat_resident
from candidates.groupnorm_silu.kernels.merge import groupnorm_silu_merge
from candidates.groupnorm_silu.kernels.rows import groupnorm_silu_rows_apply, groupnorm_silu_rows_stats
from candidates.groupnorm_silu.kernels.rows_resident import groupnorm_silu_rows_resident
from candidates.groupnorm_silu.plan import Geometry, Path, Plan, ceil_div, make_plan, next_power_of_two
from candidates.groupnorm_silu.words import barrier_words

_INDEX64_ELEMENTS = 1 << 30


@cache
def device_limits(device: torch.device) -> tuple[int, bool]:
    """SM count, and whether a kernel may start before its predecessor has ended (PDL, Hopper on)."""
    if device.type != "cuda":
        return 1, False
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.major >= 9


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
    out = empty_dense_like(x)
    if x.numel() == 0:
        return out
    geometry = geometry_of(x, out, groups)
    sm_count, pdl = device_limits(x.device)
    if plan is None:
        plan = make_plan(geometry, sm_count)
    needed = _barriers(geometry, plan)
    words = barrier_words(x.device, needed) if needed else torch.empty(0, dtype=torch.int32, device=x.device)
    if words is None:
        plan = make_plan(geometry, sm_count, barriers=False)
        words = torch.empty(0, dtype=torch.int32, device=x.device)
    tensors = (x, weight.contiguous(), bias.contiguous(), out)
    if plan.path is Path.FLAT_RESIDENT:
        _flat_resident(*tensors, words, eps, geometry, plan)
    elif plan.path is Path.ROWS_RESIDENT:
        _rows_resident(*tensors, words, eps, geometry, plan)
    elif plan.path is Path.ROWS:
        _rows(*tensors, eps, geometry, plan, pdl)
    else:
        _two_pass(*tensors, eps, geometry, plan, pdl)
    return out


def single_instructions(x: Tensor) -> bool:
    """Whether kernels may use PTX instructions: not in Triton's interpreter, which runs on CPU tensors."""
    return x.device.type != "cpu"


def _blocks(geometry: Geometry, plan: Plan) -> tuple[int, int, int]:
    """Columns of a group, groups of a channel block, channel blocks."""
    group_columns = next_power_of_two(geometry.group_channels)
    groups = plan.columns // group_columns
    return group_columns, groups, ceil_div(geometry.groups, groups)


def _barriers(geometry: Geometry, plan: Plan) -> int:
    """Words that the plan's barriers need."""
    if plan.chunks == 1 or plan.path not in (Path.FLAT_RESIDENT, Path.ROWS_RESIDENT):
        return 0
    return geometry.sizes[0] * (geometry.groups if plan.path is Path.FLAT_RESIDENT else _blocks(geometry, plan)[2])


def _launches(x: Tensor, plan: Plan) -> int:
    """Launches of a resident kernel: one. In the interpreter, where programs run one after another and cannot wait for
    each other, a second one stands for the barrier: it finds the partials of the first."""
    return 2 if x.device.type == "cpu" and plan.chunks > 1 else 1


def _flat_resident(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, words: Tensor, eps: float, geometry: Geometry, plan: Plan
) -> None:
    groups = geometry.sizes[0] * geometry.groups
    mean, m2 = torch.empty((2, groups, plan.chunks), dtype=torch.float32, device=x.device)
    for _ in range(_launches(x, plan)):
        groupnorm_silu_flat_resident[(groups * plan.chunks,)](
            x, weight, bias, out, mean, m2, words, eps, plan.chunks, plan.chunk,
            geometry.groups, geometry.group_channels, geometry.spatial, *geometry.sizes[3:],
            *geometry.x_strides, *geometry.out_strides,
            BLOCK=plan.block, VEC=geometry.vector, TILES=plan.tiles, CHUNKS_PAD=next_power_of_two(plan.chunks),
            DENSE=geometry.dense, BARRIER=plan.chunks > 1, ASM=single_instructions(x),
            num_warps=plan.warps, maxnreg=plan.registers, launch_cooperative_grid=plan.chunks > 1,
        )  # fmt: skip


def _rows_resident(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, words: Tensor, eps: float, geometry: Geometry, plan: Plan
) -> None:
    images, channels = geometry.sizes[:2]
    group_columns, groups, blocks = _blocks(geometry, plan)
    row_strides = geometry.row_strides
    assert row_strides is not None
    mean, m2 = torch.empty((2, images, plan.chunks, geometry.groups), dtype=torch.float32, device=x.device)
    for _ in range(_launches(x, plan)):
        groupnorm_silu_rows_resident[(images * plan.chunks * blocks,)](
            x, weight, bias, out, mean, m2, words, eps, plan.chunks, plan.chunk, plan.stream, blocks,
            channels, geometry.groups, geometry.spatial,
            geometry.x_strides[0], row_strides[0], geometry.out_strides[0], row_strides[1],
            CG=geometry.group_channels, CGP=group_columns, GB=groups, BR=plan.block // plan.columns, TILES=plan.tiles,
            CHUNKS_PAD=next_power_of_two(plan.chunks), STREAM=plan.stream > 0, UNROLL=plan.unroll,
            BARRIER=plan.chunks > 1, ASM=single_instructions(x),
            num_warps=plan.warps, launch_cooperative_grid=plan.chunks > 1,
        )  # fmt: skip


def _two_pass(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float, geometry: Geometry, plan: Plan, pdl: bool
) -> None:
    mean, m2 = flat_statistics(x, geometry, plan, pdl)
    tiles = ceil_div(geometry.group_elements, plan.apply_block)
    groupnorm_silu_flat_apply[(mean.shape[0] * tiles,)](
        x, weight, bias, out, mean, m2, eps, plan.chunks, plan.chunk, tiles, *_group(geometry),
        *geometry.x_strides, *geometry.out_strides, BLOCK=plan.apply_block,
        CHUNKS_PAD=next_power_of_two(plan.chunks), ASM=single_instructions(x), PDL=pdl, **_flat_layout(geometry),
        num_warps=plan.apply_warps, launch_pdl=pdl,
    )  # fmt: skip


def _group(geometry: Geometry) -> tuple[int, ...]:
    """Groups, channels of one, positions, height, width."""
    return geometry.groups, geometry.group_channels, geometry.spatial, *geometry.sizes[3:]


def _flat_layout(geometry: Geometry) -> dict[str, int]:
    return {
        "VEC": geometry.vector,
        "DENSE": geometry.dense,
        "INDEX64": geometry.group_elements > _INDEX64_ELEMENTS,
    }


def flat_statistics(x: Tensor, geometry: Geometry, plan: Plan, pdl: bool) -> Tensor:
    """Means and M2s of the chunks of each group, (2, N * G, chunks), in fp32: a plan of `plan_two_pass`."""
    groups = geometry.sizes[0] * geometry.groups
    partials = torch.empty((2, groups, plan.chunks), dtype=torch.float32, device=x.device)
    groupnorm_silu_flat_stats[(groups * plan.chunks,)](
        x, *partials, plan.chunks, plan.chunk, *_group(geometry), *geometry.x_strides,
        BLOCK=plan.block, UNROLL=plan.unroll, PDL=pdl, **_flat_layout(geometry), num_warps=plan.warps,
    )  # fmt: skip
    return partials


def _rows(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, eps: float, geometry: Geometry, plan: Plan, pdl: bool
) -> None:
    images, channels, _, height, width = geometry.sizes
    _, _, blocks = _blocks(geometry, plan)
    partials = rows_statistics(x, geometry, plan, pdl)
    channel = merged(partials, weight, eps, geometry, plan, pdl)
    spans = ceil_div(geometry.spatial, plan.span)
    x_spatial, out_spatial = _row_steps(geometry)
    groupnorm_silu_rows_apply[(images * spans * blocks,)](
        x, bias, out, channel, spans, plan.span, blocks, images * channels,
        channels, geometry.groups, geometry.spatial, height, width,
        geometry.x_strides[0], *x_spatial, geometry.out_strides[0], *out_spatial,
        BR=plan.apply_block // plan.columns, ASM=single_instructions(x), PDL=pdl, **_rows_layout(geometry, plan),
        num_warps=plan.apply_warps, launch_pdl=pdl,
    )  # fmt: skip


def _row_steps(geometry: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Strides of T, H and W in x and out; where positions have one distance, that alone, in W's place."""
    if geometry.row_strides is None:
        return geometry.x_strides[2:], geometry.out_strides[2:]
    x_step, out_step = geometry.row_strides
    return (0, 0, x_step), (0, 0, out_step)


def _rows_layout(geometry: Geometry, plan: Plan) -> dict[str, int]:
    group_columns, groups, _ = _blocks(geometry, plan)
    return {
        "CG": geometry.group_channels,
        "CGP": group_columns,
        "GB": groups,
        "SINGLE_STRIDE": geometry.row_strides is not None,
    }


def rows_statistics(x: Tensor, geometry: Geometry, plan: Plan, pdl: bool) -> Tensor:
    """Means and M2s of the chunks of rows for each group, (2, N * G, chunks) elements in the order N, chunk, group."""
    images, channels, _, height, width = geometry.sizes
    _, _, blocks = _blocks(geometry, plan)
    partials = torch.empty((2, images * geometry.groups, plan.chunks), dtype=torch.float32, device=x.device)
    groupnorm_silu_rows_stats[(images * plan.chunks * blocks,)](
        x, *partials, plan.chunks, plan.chunk, blocks, channels, geometry.groups, geometry.spatial, height, width,
        geometry.x_strides[0], *_row_steps(geometry)[0],
        BR=plan.block // plan.columns, UNROLL=plan.unroll, PDL=pdl, **_rows_layout(geometry, plan),
        num_warps=plan.warps,
    )  # fmt: skip
    return partials


def merged(partials: Tensor, weight: Tensor, eps: float, geometry: Geometry, plan: Plan, pdl: bool) -> Tensor:
    """Mean and weight / sqrt(variance + eps) of each channel, (2, N, C) in fp32, from the partials of a statistics
    pass; weight (C,), contiguous."""
    images, channels, *_ = geometry.sizes
    channel = torch.empty((2, images, channels), dtype=torch.float32, device=partials.device)
    groupnorm_silu_merge[(images * geometry.groups,)](
        *partials, weight, channel, eps, plan.chunks, plan.chunk, channels, geometry.groups, geometry.spatial,
        CG=geometry.group_channels, CGP=next_power_of_two(geometry.group_channels),
        CHUNKS_PAD=next_power_of_two(plan.chunks), ROWS=plan.path is Path.ROWS,
        PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return channel
