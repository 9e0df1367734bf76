"""Inputs that are the same bytes on every device: an integer counter-based generator, layouts, fingerprints.

`torch.randn` with one seed differs between GPUs of different SM count, and a serial CPU draw of every tensor would
take minutes. Here element i of a tensor is a hash of (seed, name, i), turned into about N(0, 1) by exact arithmetic.
"""

import hashlib
import math
from enum import StrEnum

import torch
from torch import Tensor

from harness.measure.ranks import ONLY_SEAT, Seat
from harness.schema.case import Layout

_CHUNK = 1 << 25
"""Elements drawn or summed at a time; bounds the int64 temporaries to some hundred MB."""
_LANE_MAX = 0xFFFF
_LANES_MEAN = 2.0 * _LANE_MAX
_LANES_SD = math.sqrt(4 * ((_LANE_MAX + 1) ** 2 - 1) / 12)


class Variant(StrEnum):
    """Input variants of the gate; all but NORMAL are judged against the oracle only."""

    NORMAL = "normal"
    LARGE = "large"
    """Scaled by 64."""
    SMALL = "small"
    """Scaled by 2^-10, where eps matters."""
    OFFSET = "offset"
    """Shifted by 8 standard deviations: cancels in a naive one-pass variance."""

    @property
    def scale(self) -> float:
        """Factor on activations; a power of two, so exact."""
        return {Variant.LARGE: 64.0, Variant.SMALL: 2.0**-10}.get(self, 1.0)

    @property
    def loc(self) -> float:
        """Shift of activations."""
        return 8.0 if self is Variant.OFFSET else 0.0


def _signed(value: int) -> int:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _hash(counter: Tensor) -> Tensor:
    """SplitMix64's output function (Steele, Lea, Flood 2014), wrapping int64 arithmetic: exact on any device."""
    z = counter * _GOLDEN
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def _stream(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return _signed(int.from_bytes(digest[:8], "little"))


def fill_normal(flat: Tensor, seed: int, name: str, loc: float, scale: float) -> None:
    """Fill a contiguous 1-D tensor with about N(loc, scale²): four 16-bit lanes of the hash, standardised.

    Every step is an integer operation or one correctly rounded fp32 operation: the bytes do not depend on the device.
    """
    stream = _stream(seed, name)
    for start in range(0, flat.numel(), _CHUNK):
        stop = min(start + _CHUNK, flat.numel())
        z = _hash(torch.arange(start, stop, device=flat.device, dtype=torch.int64) + stream)
        lanes = (z & _LANE_MAX) + (_shift_right(z, 16) & _LANE_MAX)
        lanes += (_shift_right(z, 32) & _LANE_MAX) + _shift_right(z, 48)
        values = (lanes.to(torch.float32) - _LANES_MEAN) * (1.0 / _LANES_SD)
        flat[start:stop] = (values * scale + loc).to(flat.dtype)


def empty_with_layout(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, layout: Layout) -> Tensor:
    """Uninitialised tensor of logical `shape` stored in `layout`; memory outside a slice is NaN.

    Raises ValueError when the layout has no meaning for the rank.
    """
    if layout is Layout.CONTIGUOUS:
        return torch.empty(shape, dtype=dtype, device=device)
    if layout is Layout.CHANNELS_LAST:
        if len(shape) not in (4, 5):
            raise ValueError(f"channels_last needs 4 or 5 dims, the shape is {shape}")
        memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return torch.empty(shape, dtype=dtype, device=device, memory_format=memory_format)
    if layout is Layout.SLICED:
        base = torch.full((*shape[:-1], 3 * shape[-1]), math.nan, dtype=dtype, device=device)
        return base[..., shape[-1] : 2 * shape[-1]]
    if layout is Layout.TRANSPOSED:
        if len(shape) < 2:
            raise ValueError(f"transposed needs 2 dims, the shape is {shape}")
        first, second = (0, 1) if len(shape) == 2 else (1, 2)
        stored = list(shape)
        stored[first], stored[second] = stored[second], stored[first]
        return torch.empty(stored, dtype=dtype, device=device).transpose(first, second)
    base = torch.empty(shape, dtype=dtype, device=device)
    strides = tuple(37 if size == 1 else stride for size, stride in zip(shape, base.stride(), strict=True))
    return base.as_strided(shape, strides)


class SeededDraw:
    """`harness.op.Draw` for one seed and variant; remembers what it drew."""

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        variant: Variant = Variant.NORMAL,
        weight_seed: int | None = None,
        seat: Seat = ONLY_SEAT,
    ) -> None:
        self.seed = seed
        self.weight_seed = seed if weight_seed is None else weight_seed
        self.dtype = dtype
        self.device = device
        self.variant = variant
        self.rank, self.ranks, self.group = seat.rank, seat.ranks, seat.group
        self.drawn: dict[str, Tensor] = {}

    def activation(self, name: str, shape: tuple[int, ...], layout: Layout = Layout.CONTIGUOUS) -> Tensor:
        """See `harness.op.Draw.activation`."""
        tensor = empty_with_layout(shape, self.dtype, self.device, layout)
        flat = torch.empty(tensor.numel(), dtype=self.dtype, device=self.device)
        stream = f"{name}@{self.rank}" if self.rank else name
        fill_normal(flat, self.seed, stream, self.variant.loc, self.variant.scale)
        tensor.copy_(flat.view(shape))
        self.drawn[name] = tensor
        return tensor

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        loc: float = 0.0,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """See `harness.op.Draw.weight`."""
        flat = torch.empty(math.prod(shape), dtype=dtype or self.dtype, device=self.device)
        fill_normal(flat, self.weight_seed, name, loc, scale)
        self.drawn[name] = flat.view(shape)
        return self.drawn[name]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(tensor: Tensor) -> str:
    """64-bit positional checksum of the tensor's logical elements, as hex; the same on every device."""
    flat = tensor.detach().reshape(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, flat.numel(), _CHUNK):
        bits = flat[start : start + _CHUNK].to(torch.int64)
        index = torch.arange(start, start + bits.numel(), device=tensor.device, dtype=torch.int64)
        total += ((bits + 1) * (2 * _hash(index) + 1)).sum()
    return f"{int(total.item()) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def storage_fingerprint(tensor: Tensor) -> str:
    """Like `fingerprint`, of the whole storage behind a view: also sees writes just outside a slice."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),))  # type: ignore[call-overload]
    return fingerprint(whole)
