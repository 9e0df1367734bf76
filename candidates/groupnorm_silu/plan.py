"""Which kernels to launch for an activation and with what sizes: pure arithmetic on shapes and strides, no torch."""

import math
from dataclasses import dataclass
from enum import StrEnum

VECTOR_BYTES = 16
SMALL_BYTES = 8 << 20
SINGLE_MAX_ELEMENTS = 16384
"""Largest group that one program keeps in registers."""


class Path(StrEnum):
    """The kernels that an activation goes through."""

    SINGLE = "single"
    """One launch, one program per group."""
    TWO_PASS = "two_pass"
    """Statistics, then apply; groups contiguous or strided."""
    ROWS = "rows"
    """Statistics, merge, apply, over rows of adjacent channels (channels-last)."""


@dataclass(frozen=True)
class Geometry:
    """An activation as (N, C, T, H, W), dims it lacks being 1; strides in elements, 0 for dims of size 1."""

    sizes: tuple[int, int, int, int, int]
    x_strides: tuple[int, int, int, int, int]
    out_strides: tuple[int, int, int, int, int]
    groups: int
    itemsize: int

    @property
    def spatial(self) -> int:
        """T * H * W."""
        return math.prod(self.sizes[2:])

    @property
    def group_channels(self) -> int:
        """Channels per group."""
        return self.sizes[1] // self.groups

    @property
    def group_elements(self) -> int:
        """Elements per group."""
        return self.group_channels * self.spatial

    @property
    def dense(self) -> bool:
        """Whether each group is one run of memory in logical order, in x and out."""
        _, _, _, h, w = self.sizes
        wanted = (self.spatial, h * w, w, 1)
        return all(
            stride == want
            for strides in (self.x_strides, self.out_strides)
            for size, stride, want in zip(self.sizes[1:], strides[1:], wanted, strict=True)
            if size > 1
        )

    @property
    def row_strides(self) -> tuple[int, int] | None:
        """Distance of one spatial position to the next, in x and out, where that is one number; else None."""
        found = []
        for strides in (self.x_strides, self.out_strides):
            step = None
            span = 1
            for size, stride in zip(self.sizes[:1:-1], strides[:1:-1], strict=True):
                if size == 1:
                    continue
                step = stride if step is None else step
                if stride != step * span:
                    return None
                span *= size
            found.append(1 if step is None else step)
        return found[0], found[1]

    @property
    def channels_last(self) -> bool:
        """Whether channels are adjacent in memory, in x and out, and there are positions to go over."""
        return self.sizes[1] > 1 and self.spatial > 1 and self.x_strides[1] == 1 and self.out_strides[1] == 1

    @property
    def vector(self) -> int:
        """Elements per access that share a channel and are adjacent in x and out."""
        most = VECTOR_BYTES // self.itemsize
        if self.dense:
            return math.gcd(self.spatial, most)
        if self.x_strides[4] == 1 and self.out_strides[4] == 1:
            return math.gcd(self.sizes[4], most)
        return 1


@dataclass(frozen=True)
class Plan:
    """Launch sizes. `chunks` pieces of `chunk` elements (rows, for ROWS) per group (per N, for ROWS) give partials."""

    path: Path
    warps: int
    block: int
    """Elements per tile of the statistics pass, or of the only pass."""
    unroll: int = 1
    chunk: int = 0
    chunks: int = 0
    apply_warps: int = 0
    apply_block: int = 0
    """Elements per tile of the apply pass."""
    columns: int = 0
    """ROWS: channels per tile, padding included."""
    span: int = 0
    """ROWS: rows per program of the apply pass."""


def next_power_of_two(value: int) -> int:
    """The least power of two that is not below `value` (1 for 0)."""
    return 1 << max(value - 1, 0).bit_length()


def ceil_div(value: int, by: int) -> int:
    """value / by, rounded up."""
    return -(-value // by)


def _split(total: int, pieces: int, multiple: int) -> tuple[int, int]:
    """Size and number of about `pieces` equal pieces, sizes rounded up to `multiple`."""
    size = max(ceil_div(ceil_div(total, pieces), multiple) * multiple, multiple)
    return size, ceil_div(total, size)


def make_plan(geometry: Geometry, sm_count: int) -> Plan:
    """The launch sizes for an activation."""
    if geometry.channels_last and next_power_of_two(geometry.group_channels) <= 2048 and geometry.spatial <= 1 << 30:
        return plan_rows(geometry, sm_count)
    if geometry.group_elements <= SINGLE_MAX_ELEMENTS:
        block = next_power_of_two(geometry.group_elements)
        return Plan(Path.SINGLE, warps=min(max(block // 512, 1), 16), block=max(block, geometry.vector))
    return plan_two_pass(geometry, sm_count)


def plan_two_pass(geometry: Geometry, sm_count: int) -> Plan:
    """Statistics in one wave of programs, two per SM; an apply pass of many small programs.

    On an H200 a second, partly filled wave of statistics programs cost 9 % of the whole at 1x128x20x256x256; apply
    tiles of 2048 elements beat 4096 and 8192 by 2 % and 5 % there, and 8 MB and less wanted half-sized programs.
    """
    groups = geometry.sizes[0] * geometry.groups
    small = geometry.group_elements * groups * geometry.itemsize <= SMALL_BYTES
    warps, apply_block, apply_warps = (8, 4096, 8) if small else (16, 2048, 2)
    chunk, chunks = _split(geometry.group_elements, max(2 * sm_count // groups, 1), 2048)
    return Plan(
        Path.TWO_PASS,
        warps=warps,
        block=256 * warps,
        unroll=4,
        chunk=chunk,
        chunks=chunks,
        apply_warps=apply_warps,
        apply_block=apply_block,
    )


def plan_rows(geometry: Geometry, sm_count: int) -> Plan:
    """Blocks of 128 channels (256-byte runs of memory); statistics in one wave of programs, one per SM."""
    group_columns = next_power_of_two(geometry.group_channels)
    columns = max(group_columns, min(128, next_power_of_two(geometry.groups * group_columns)))
    blocks = ceil_div(geometry.groups, columns // group_columns)
    images = geometry.sizes[0]
    block, apply_block = max(4096, columns), max(2048, columns)
    chunk, chunks = _split(geometry.spatial, max(sm_count // (blocks * images), 1), block // columns)
    return Plan(
        Path.ROWS,
        warps=16,
        block=block,
        unroll=4,
        chunk=chunk,
        chunks=chunks,
        apply_warps=2,
        apply_block=apply_block,
        columns=columns,
        span=4 * (apply_block // columns),
    )
