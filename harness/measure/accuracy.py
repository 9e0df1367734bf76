"""The gate's element rule and error figures: candidate against native and against a higher-precision oracle.

An element passes if it is within `atol + rtol·|native|` of native, or if it is no farther from the oracle than native
is, plus one ULP of the largest operand (the element itself, or the output's RMS: an element near zero is the
difference of terms of that size, each rounded). At one element native is near the oracle by luck, and of 25 M elements
a hundred are not as near in a kernel that skips one of native's roundings and has the smaller error on the whole. Such
elements are excused where native is at least as often the one that is farther off by more than that ULP, and each of
them only up to native's worst of the whole output, in ULP, plus one. Native itself rounds, so a kernel nearer to the
truth must not fail; and since all-zero output passes allclose wherever |native| <= atol, the RMS error against the
oracle must also stay within 1.5 x native's, in each output by itself. On scaled or shifted inputs native is no
yardstick: there the first branch is the same tolerance against the oracle, with atol in units of the oracle's RMS, so
that it means the same at any scale.

Comparisons run in chunks: no temporary is larger than some hundred MB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

_CHUNK = 1 << 25
_ULP_HISTOGRAM = 1 << 12
"""Distances from here on share the last bin."""
RMS_FACTOR = 1.5
RMS_FACTOR_FP32 = 8.0
"""fp32 outputs differ by the order of summation alone, by a few ULP; tf32 or bf16 inside shows as a factor of 1000."""
_MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_INT_OF = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of `dtype` at |magnitude| (fp32 or fp64 tensor), elementwise; never below the smallest normal's."""
    exponent = torch.frexp(magnitude.abs().clamp_min(torch.finfo(dtype).tiny)).exponent
    return torch.ldexp(torch.ones_like(magnitude), exponent - 1 - _MANTISSA_BITS[dtype])


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Representable values between a and b (same dtype), int64; +0 and -0 are the same value."""

    def ordered(t: Tensor) -> Tensor:
        bits = t.contiguous().view(_INT_OF[t.dtype]).to(torch.int64)
        sign_bit = 1 << (8 * t.element_size() - 1)
        return torch.where(bits < 0, -(bits + sign_bit), bits)

    return (ordered(a) - ordered(b)).abs()


def _rms_of(values: Tensor) -> float:
    return math.sqrt(float(values.double().square().mean())) if values.numel() else 0.0


def _grain(dtype: torch.dtype, scale: float, *values: Tensor) -> Tensor:
    """One ULP of the largest of the values, elementwise, or of `scale` where that is larger."""
    largest = values[0].abs()
    for value in values[1:]:
        largest = torch.maximum(largest, value.abs())
    return ulp(largest.clamp_min(scale), dtype)


def worst_ulp(native: Tensor, oracle: Tensor) -> float:
    """How far native is from the oracle at worst, in ULP of the element or of the output's RMS. Same shapes."""
    flat_n, flat_o, scale, worst = native.reshape(-1), oracle.reshape(-1), _rms_of(oracle), 0.0
    for n, o in zip(flat_n.split(_CHUNK), flat_o.split(_CHUNK), strict=True):
        wide = n.to(o.dtype)
        worst = max(worst, float(((wide - o).abs() / _grain(native.dtype, scale, wide, o)).nan_to_num(0.0).max()))
    return worst


def _chunks(*flat: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    """Where each chunk begins, and the chunks of all tensors in the dtype of the last, the oracle's."""
    for start in range(0, flat[-1].numel(), _CHUNK):
        yield start, [one[start : start + _CHUNK].to(flat[-1].dtype) for one in flat]


def _first(fails: Tensor, c: Tensor, n: Tensor, o: Tensor, start: int) -> str:
    """The first failing element in words; empty when none fails."""
    if not fails.any():
        return ""
    where = int(torch.argmax(fails.to(torch.uint8)))
    return (
        f"element {start + where}: got {c[where].item():.6g}, native {n[where].item():.6g}, "
        f"oracle {o[where].item():.6g}"
    )


@dataclass(frozen=True)
class _Rule:
    """The element rule for one output; see the module. Tensors are chunks in the oracle's dtype."""

    dtype: torch.dtype
    atol: float
    rtol: float
    against_native: bool
    extra_ulp: int
    scale: float
    """RMS of the oracle's whole output."""

    def fails(self, one: Tensor, other: Tensor, oracle: Tensor) -> Tensor:
        """Elements of one that are neither within the tolerance nor as close to the oracle as the other's, plus a ULP.

        The candidate against native, or native against the candidate. NaN fails.
        """
        grain = _grain(self.dtype, self.scale, one, other, oracle)
        error = (one - oracle).abs()
        if self.against_native:
            tolerated = (one - other).abs() <= self.atol + self.rtol * other.abs()
        else:
            tolerated = error <= self.atol * self.scale + self.rtol * oracle.abs()
        return ~(tolerated | (error <= (other - oracle).abs() + (1 + self.extra_ulp) * grain))

    def within(self, worst: float, candidate: Tensor, native: Tensor, oracle: Tensor) -> Tensor:
        """Elements of the candidate no farther from the oracle than native at its worst, plus a ULP.

        Not in ULP of the candidate's own value: none is farther from anything than 256 of those.
        """
        grain = _grain(self.dtype, self.scale, native, oracle)
        return (candidate - oracle).abs() <= (worst + 1 + self.extra_ulp) * grain


@dataclass
class _Squares:
    """Sums of squared errors against the oracle."""

    elements: int = 0
    candidate: float = 0.0
    native: float = 0.0
    rounded: float = 0.0
    """Of the oracle itself, rounded to the output's dtype once."""

    def add(self, other: _Squares) -> None:
        """Accumulate another's."""
        self.elements += other.elements
        self.candidate += other.candidate
        self.native += other.native
        self.rounded += other.rounded

    def rms(self, squared: float) -> float:
        """Root of the mean of one of the sums."""
        return math.sqrt(squared / self.elements) if self.elements else 0.0

    def failure(self, factor: float, granted: str) -> str:
        """Why the candidate's error is too large, or ""; `granted` says what is in the factor beside the rule's.

        The oracle rounded once is the best any kernel can do in this dtype: a native that is exact by luck (RMS 0)
        must not demand exactness of everyone.
        """
        error, best = self.rms(self.candidate), self.rms(max(self.native, self.rounded))
        if error <= factor * best:
            return ""
        return f"RMS error {error:.3g} against the oracle is above {factor:g} x native's {best:.3g}{granted}"


@dataclass
class Comparison:
    """Errors of one candidate output (or several, accumulated) against native and the oracle."""

    atol: float
    rtol: float
    elements: int = 0
    literal_failures: int = 0
    rule_failures: int = 0
    non_finite: int = 0
    max_abs_error_native: float = 0.0
    bit_exact: bool = True
    max_ulp: int = 0
    first_failure: str = ""
    rms_failure: str = ""
    """The first output whose RMS error is too large."""
    _squared: _Squares = field(default_factory=_Squares)
    """Of all outputs."""
    _ulp_counts: Tensor = field(default_factory=lambda: torch.zeros(_ULP_HISTOGRAM + 1, dtype=torch.int64))

    def add(self, candidate: Tensor, native: Tensor, oracle: Tensor, *, against_native: bool, extra_ulp: int) -> None:
        """Accumulate one output. Shapes equal; oracle in fp64 or fp32; `extra_ulp` is granted on top of the rule.

        `against_native=False` is for scaled and shifted inputs: the tolerance then holds against the oracle.
        """
        self.bit_exact = self.bit_exact and torch.equal(candidate, native)
        flat_c, flat_n, flat_o = candidate.reshape(-1), native.reshape(-1), oracle.reshape(-1)
        rule = _Rule(candidate.dtype, self.atol, self.rtol, against_native, extra_ulp, _rms_of(flat_o))
        farther, first, squares = 0, "", _Squares()
        for start, (c, n, o) in _chunks(flat_c, flat_n, flat_o):
            fails = rule.fails(c, n, o)
            first = first or _first(fails, c, n, o, start)
            farther += int(fails.sum())
            self._add_figures(c, n, o, candidate.dtype, squares)
        self._squared.add(squares)
        factor = (RMS_FACTOR_FP32 if candidate.dtype is torch.float32 else RMS_FACTOR) + extra_ulp
        granted = f" ({extra_ulp} granted for Triton's interpreter, which truncates)" if extra_ulp else ""
        self.rms_failure = self.rms_failure or squares.failure(factor, granted)
        if farther and farther <= sum(
            int(rule.fails(n, c, o).sum()) for _, (c, n, o) in _chunks(flat_c, flat_n, flat_o)
        ):
            farther, first, worst = 0, "", worst_ulp(native, oracle)
            for start, (c, n, o) in _chunks(flat_c, flat_n, flat_o):
                fails = rule.fails(c, n, o) & ~rule.within(worst, c, n, o)
                first = first or _first(fails, c, n, o, start)
                farther += int(fails.sum())
        self.rule_failures += farther
        self.first_failure = self.first_failure or first

    def _add_figures(self, c: Tensor, n: Tensor, o: Tensor, dtype: torch.dtype, squares: _Squares) -> None:
        """What is printed beside the rule, and the squares of one output's errors."""
        self.elements += c.numel()
        finite = torch.isfinite(c) & torch.isfinite(n)
        self.non_finite += int((~finite).sum())
        to_native = (c - n).abs()
        self.literal_failures += int((~(to_native <= self.atol + self.rtol * n.abs())).sum())
        if finite.all() and c.numel():
            self.max_abs_error_native = max(self.max_abs_error_native, float(to_native.max()))
            rounded = o.to(dtype).to(o.dtype)
            squares.add(_Squares(c.numel(), *(float((one - o).double().square().sum()) for one in (c, n, rounded))))
            distance = ulp_distance(c.to(dtype), n.to(dtype))
            self.max_ulp = max(self.max_ulp, int(distance.max()))
            self._ulp_counts += torch.bincount(distance.clamp_max(_ULP_HISTOGRAM), minlength=_ULP_HISTOGRAM + 1).cpu()

    @property
    def rms_error(self) -> float:
        """RMS error of the candidate against the oracle, over all outputs."""
        return self._squared.rms(self._squared.candidate)

    @property
    def rms_error_native(self) -> float:
        """RMS error of native against the oracle, over all outputs."""
        return self._squared.rms(self._squared.native)

    @property
    def p999_ulp(self) -> int:
        """99.9th percentile of the ULP distance to native; the histogram's last bin means "at least"."""
        total = int(self._ulp_counts.sum())
        if not total:
            return 0
        return int(torch.searchsorted(self._ulp_counts.cumsum(0), math.ceil(0.999 * total)))

    def verdict(self) -> str:
        """Why the candidate fails, in one sentence; empty when it passes."""
        if self.non_finite:
            return f"{self.non_finite} of {self.elements} elements are NaN or Inf in the candidate or in native"
        if self.rule_failures:
            return f"{self.rule_failures} of {self.elements} elements fail the element rule ({self.first_failure})"
        return self.rms_failure
