"""Tile sizes for an activation: pure arithmetic on shapes and strides, no torch."""

from dataclasses import dataclass

MAX_CHANNELS = 4096
_MAX_PIECES = 8
_POSITIONS = ((192, 64), (512, 32), (1024, 16), (MAX_CHANNELS, 8))
"""Positions per tile for up to so many channels: 128-byte runs of bf16 where registers allow it."""
_ELEMENTS_PER_THREAD = 24
_ROW_ELEMENTS_PER_THREAD = 48
_FEW_CHANNELS = 192


@dataclass(frozen=True)
class Plan:
    """A tile of all channels, in `pieces` pieces of `piece` channels, by `positions` positions."""

    pieces: int
    piece: int
    positions: int
    warps: int


@dataclass(frozen=True)
class RowsPlan:
    """`groups` groups of `rows` positions per program, all channels of each in `pieces` pieces of `piece` channels."""

    pieces: int
    piece: int
    rows: int
    groups: int
    warps: int


def ceil_div(value: int, by: int) -> int:
    """value / by, rounded up."""
    return -(-value // by)


def next_power_of_two(value: int) -> int:
    """The least power of two that is not below `value`."""
    return 1 << max(value - 1, 0).bit_length()


def split_channels(channels: int) -> tuple[int, int]:
    """Pieces and channels per piece (a power of two): as few idle lanes as possible, then as few pieces.

    Raises ValueError for more channels than a program can hold.
    """
    if not 1 <= channels <= MAX_CHANNELS:
        raise ValueError(f"C={channels}: these kernels hold 1 to {MAX_CHANNELS} channels")
    whole = next_power_of_two(channels)
    sizes = [whole >> shift for shift in range(whole.bit_length())]
    fitting = [(ceil_div(channels, size), size) for size in sizes if ceil_div(channels, size) <= _MAX_PIECES]
    return min(fitting, key=lambda split: (split[0] * split[1], split[0]))


def make_plan(channels: int, images: int, positions: int, sm_count: int) -> Plan:
    """Tile for `images` images of `positions` positions of `channels` channels."""
    pieces, piece = split_channels(channels)
    held = pieces * piece
    tile = next(tile for most, tile in _POSITIONS if held <= most)
    # at least two programs per SM while a tile's runs still fill a 32-byte sector of bf16
    while tile > 16 and images * ceil_div(positions, tile) < 2 * sm_count:
        tile //= 2
    warps = next_power_of_two(ceil_div(held * tile, 32 * _ELEMENTS_PER_THREAD))
    return Plan(pieces, piece, tile, min(max(warps, 1), 16))


def make_rows_plan(channels: int) -> RowsPlan:
    """Rows of a program where channels are adjacent. As measured on an H200, bf16:

    * Programs of one warp: no warp waits for another's part of a sum (65536 rows of 192: 13.72 µs, with four warps
      14.37). Only a row that would be more than 48 elements a thread takes more of them.
    * A thread loads 16 bytes at a time, three times or more, since 32 programs are all that an SM holds. From 192
      channels on that is best (16384 rows of 384: 7.64, with six loads 7.96); below, six are (1.6 million rows of
      96: 147.3, with three 147.7).
    """
    pieces, piece = split_channels(channels)
    warps = next_power_of_two(ceil_div(pieces * piece, 32 * _ROW_ELEMENTS_PER_THREAD))
    rows = max(256 * warps // piece, 1)
    loads = pieces * ceil_div(rows * piece, 256 * warps)
    return RowsPlan(pieces, piece, rows, max((6 if channels < _FEW_CHANNELS else 3) // loads, 1), warps)
