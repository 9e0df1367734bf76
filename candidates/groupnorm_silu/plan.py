"""Which kernels to launch for an activation and with what sizes: pure arithmetic on shapes and strides, no torch."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

VECTOR_BYTES = 16
SMALL_BYTES = 8 << 20
HELD_BYTES = 160 << 10
"""Most of x that one resident program keeps: 160 of its threads' 255 registers, at 8 warps.

Elements that are not loaded in pairs take a register each.
"""
RESIDENT_WARPS = 8
RESIDENT_TILE = 256 * RESIDENT_WARPS
RESIDENT_PAIR_ELEMENTS = 5 * RESIDENT_TILE
"""Two programs per SM that keep this much each were 7 % faster than one with twice as much, at 1x512x5x32x32."""
STREAM_BYTES = 60 << 20
"""Largest x that is kept in part and re-read in part: about what L2 and the registers hold together."""
STREAM_HELD_TILES = 12
MERGED_GROUPS = 16
"""Most groups of which a resident program merges all partials, so that these fit beside x."""


class Path(StrEnum):
    """The kernels that an activation goes through."""

    FLAT_RESIDENT = "flat_resident"
    """One launch, one read: a few programs per group, or one. Groups contiguous or strided."""
    ROWS_RESIDENT = "rows_resident"
    """One launch, one read, over rows of adjacent channels (channels-last)."""
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
    """Launch sizes. `chunks` pieces of `chunk` elements per group give partials; for rows, `chunk` rows per N."""

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
    """Rows: channels per tile, padding included."""
    span: int = 0
    """ROWS: rows per program of the apply pass; for a padded output positions per tile."""
    tiles: int = 0
    """Resident: tiles that a program keeps."""
    stream: int = 0
    """ROWS_RESIDENT: rows of a chunk that are read twice instead of kept."""
    registers: int | None = None
    """FLAT_RESIDENT: cap per thread, so that two programs of a launch fit an SM."""


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


def _in_rows(geometry: Geometry) -> bool:
    """Whether the kernels for rows of adjacent channels fit."""
    return geometry.channels_last and next_power_of_two(geometry.group_channels) <= 2048 and geometry.spatial <= 1 << 30


def make_padded_plan(geometry: Geometry, sm_count: int) -> Plan:
    """Statistics as in `plan_rows` or `plan_two_pass`; the apply pass in tiles of `span` positions of one line by
    channels: whole rows where channels are adjacent in x, else some 128 bytes both ways."""
    channels, width = next_power_of_two(geometry.sizes[1]), next_power_of_two(geometry.sizes[4])
    if _in_rows(geometry):
        plan, columns, tile, warps = plan_rows(geometry, sm_count), min(128, channels), 2048, 2
    else:
        plan, columns, tile, warps = plan_two_pass(geometry, sm_count), min(64, channels), 4096, 8
    span = min(max(tile // columns, 1), width)
    return replace(plan, span=span, apply_block=span * columns, apply_warps=warps)


def make_plan(geometry: Geometry, sm_count: int, barriers: bool = True) -> Plan:
    """The launch sizes for an activation. `barriers` False rules out plans whose programs wait for each other.

    Where x fits in the registers of all SMs together it is read once, in one launch.
    """
    rows = _in_rows(geometry)
    makers = (plan_rows_resident, plan_rows_streaming) if rows else (plan_flat_resident,)
    for maker in makers:
        plan = maker(geometry, sm_count)
        if plan is not None and (barriers or plan.chunks == 1):
            return plan
    return (plan_rows if rows else plan_two_pass)(geometry, sm_count)


def plan_flat_resident(geometry: Geometry, sm_count: int) -> Plan | None:
    """All SMs share the groups, one program each or two small ones; None where a program could not keep its part.

    A group of up to 16 K elements is one tile of one program.
    """
    groups = geometry.sizes[0] * geometry.groups
    registers = None
    if geometry.group_elements <= 16384:
        block = max(next_power_of_two(geometry.group_elements), geometry.vector)
        warps, chunk, chunks = min(max(block // 512, 1), 16), geometry.group_elements, 1
    else:
        block, warps = RESIDENT_TILE, RESIDENT_WARPS
        chunk, chunks = _split(geometry.group_elements, max(2 * sm_count // groups, 1), geometry.vector)
        if chunk <= RESIDENT_PAIR_ELEMENTS:
            registers = 128
        else:
            chunk, chunks = _split(geometry.group_elements, max(sm_count // groups, 1), geometry.vector)
    held = geometry.itemsize if geometry.vector > 1 else 4
    if chunk * held > HELD_BYTES or (chunks > 1 and not geometry.dense):
        return None
    return Plan(
        Path.FLAT_RESIDENT,
        warps=warps,
        block=block,
        chunk=chunk,
        chunks=chunks,
        tiles=ceil_div(chunk, block),
        registers=registers,
    )


def _resident_blocks(geometry: Geometry) -> tuple[int, int]:
    """Columns of a resident program's tile, and channel blocks of all images: 256-byte runs where groups allow it."""
    group_columns = next_power_of_two(geometry.group_channels)
    groups = min(max(128 // group_columns, 1), MERGED_GROUPS, next_power_of_two(geometry.groups))
    return group_columns * groups, geometry.sizes[0] * ceil_div(geometry.groups, groups)


def plan_rows_resident(geometry: Geometry, sm_count: int) -> Plan | None:
    """All SMs share the rows of all channel blocks, one program each; None where a program could not keep its part."""
    columns, blocks = _resident_blocks(geometry)
    rows = max(RESIDENT_TILE // columns, 1)
    chunk, chunks = _split(geometry.spatial, max(sm_count // blocks, 1), rows)
    held = geometry.itemsize if geometry.group_channels == next_power_of_two(geometry.group_channels) else 4
    if geometry.row_strides is None or chunk * columns * held > HELD_BYTES:
        return None
    return Plan(
        Path.ROWS_RESIDENT,
        warps=RESIDENT_WARPS,
        block=rows * columns,
        chunk=chunk,
        chunks=chunks,
        columns=columns,
        tiles=chunk // rows,
    )


def plan_rows_streaming(geometry: Geometry, sm_count: int) -> Plan | None:
    """As `plan_rows_resident`, but a program keeps its last 12 tiles and reads the others again, latest first.

    1x256x7x128x128 in bf16 took 49.4 us so, 53.8 us as ROWS. None for other dtypes and odd groups, not measured.
    """
    columns, blocks = _resident_blocks(geometry)
    total_bytes = geometry.sizes[0] * geometry.sizes[1] * geometry.spatial * geometry.itemsize
    odd = geometry.itemsize != 2 or geometry.group_channels != next_power_of_two(geometry.group_channels)
    if geometry.row_strides is None or odd or blocks > sm_count or total_bytes > STREAM_BYTES:
        return None
    warps, unroll = 16, 4
    rows = max(256 * warps // columns, 1)
    held = STREAM_HELD_TILES * rows
    chunk, _ = _split(geometry.spatial, sm_count // blocks, rows)
    stream = ceil_div(max(chunk - held, 0), rows * unroll) * rows * unroll
    return Plan(
        Path.ROWS_RESIDENT,
        warps=warps,
        block=rows * columns,
        unroll=unroll,
        chunk=stream + held,
        chunks=ceil_div(geometry.spatial, stream + held),
        columns=columns,
        tiles=STREAM_HELD_TILES,
        stream=stream,
    )


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
