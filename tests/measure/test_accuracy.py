"""The element rule and its figures, on the examples it was made for and as properties."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.measure import accuracy
from harness.measure.accuracy import Comparison, ulp, ulp_distance

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_INT = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
_INFINITY_BITS = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00, torch.float32: 0x7F800000}


@st.composite
def finite_values(draw: Any, count: int) -> tuple[torch.dtype, list[Tensor]]:
    """One dtype and so many finite values of it, any bits."""
    dtype = draw(st.sampled_from(DTYPES))
    size = 16 if _INT[dtype] is torch.int16 else 32
    values = []
    for _ in range(count):
        magnitude = draw(st.integers(0, _INFINITY_BITS[dtype] - 1))
        bits = magnitude - (1 << (size - 1)) if draw(st.booleans()) else magnitude
        values.append(torch.tensor([bits], dtype=_INT[dtype]).view(dtype))
    return dtype, values


def distance(a: Tensor, b: Tensor) -> int:
    return int(ulp_distance(a, b).item())


@settings(deadline=None)
@given(finite_values(3))
def test_ulp_distance_is_a_metric(drawn: tuple[torch.dtype, list[Tensor]]) -> None:
    _, (a, b, c) = drawn
    assert distance(a, b) == distance(b, a) >= 0
    assert (distance(a, b) == 0) == bool(a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@settings(deadline=None)
@given(finite_values(1))
def test_neighbours_are_one_apart_and_one_ulp_apart(drawn: tuple[torch.dtype, list[Tensor]]) -> None:
    dtype, (value,) = drawn
    wide = value.abs().double()
    if wide < torch.finfo(dtype).tiny or wide >= torch.finfo(dtype).max / 2:
        return
    above = (value.abs().view(_INT[dtype]) + 1).view(dtype)
    assert distance(value.abs(), above) == 1
    assert float(above.double() - wide) == float(ulp(wide, dtype))


def test_ulp_distance_counts_across_zero() -> None:
    smallest = torch.tensor([1, -32767], dtype=torch.int16).view(torch.bfloat16)
    assert distance(smallest[:1], smallest[1:]) == 2
    assert distance(torch.tensor([0.0]), torch.tensor([-0.0])) == 0


def judged(
    candidate: Tensor, native: Tensor, oracle: Tensor, *, against_native: bool = True, tolerance: float = 1e-2
) -> tuple[str, Comparison]:
    """(verdict, comparison) of one output."""
    comparison = Comparison(atol=tolerance, rtol=tolerance)
    comparison.add(candidate, native, oracle, against_native=against_native, extra_ulp=0)
    return comparison.verdict(), comparison


def normal(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotated(x: Tensor, y: Tensor, angle: Tensor, dtype: torch.dtype) -> Tensor:
    """x·cos − y·sin with every product rounded to dtype, as RoPE in that dtype is."""
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return (x.to(dtype) * cos).to(dtype) - (y.to(dtype) * sin).to(dtype)


@pytest.mark.defence("accuracy_oracle_branch")
def test_nearer_to_the_truth_than_native_passes_though_allclose_fails() -> None:
    """RoPE: native rounds each product to bf16; a kernel that rounds once differs by more than 1e-2 here and there."""
    n = 200_000
    # the inputs as stored: rounding them is nobody's error
    x, y = (normal(n, seed).mul(8).bfloat16().double() for seed in (1, 2))
    angle = normal(n, 3)
    oracle = x * angle.cos().bfloat16().double() - y * angle.sin().bfloat16().double()
    native = rotated(x, y, angle, torch.bfloat16)
    verdict, comparison = judged(oracle.bfloat16(), native, oracle)
    assert comparison.literal_failures > 100
    assert comparison.rule_failures == 0
    assert verdict == ""
    assert comparison.rms_error < comparison.rms_error_native


def modulated(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """h * (1 + scale) + shift, each step rounded to bf16."""
    return (h.bfloat16() * (1 + scale.bfloat16()) + shift.bfloat16()).double()


def test_native_is_near_the_truth_by_luck_at_one_element_only() -> None:
    """Residual + gate, then modulation: a kernel that skips one of native's roundings is no worse than native is."""
    n = 2_000_000
    x, y, gate, scale, shift = (normal(n, seed).bfloat16().double() for seed in range(5))
    oracle = (x + gate * y) * (1 + scale) + shift
    native = modulated(x + (gate * y).bfloat16().double(), scale, shift)
    fused = modulated(x + gate * y, scale, shift)
    verdict, comparison = judged(fused.bfloat16(), native.bfloat16(), oracle)
    assert comparison.rms_error < comparison.rms_error_native
    grain = ulp(native.abs().clamp_min(float(oracle.square().mean().sqrt())), torch.bfloat16)
    far = (fused - native).abs() > 1e-2 * (1 + native.abs())
    assert int((far & ((fused - oracle).abs() > (native - oracle).abs() + 1.01 * grain)).sum()) > 5, "one by one"
    assert verdict == ""


def gated(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Oracle of residual + gate and modulation, native (bf16 at each step), and the oracle rounded once."""
    x, y, gate, scale, shift = (normal(n, seed).bfloat16().double() for seed in range(5))
    oracle = (x + gate * y) * (1 + scale) + shift
    return oracle, modulated(x + (gate * y).bfloat16().double(), scale, shift).bfloat16(), oracle.bfloat16()


@pytest.mark.defence("accuracy_excuse")
def test_no_element_is_excused_where_native_is_not_the_farther_one_elsewhere() -> None:
    """Native's own bits but for three elements, each nearer to the oracle than native is at its worst."""
    oracle, native, _ = gated(200_000)
    off = native.clone()
    near = torch.nonzero((native.double() - oracle).abs() < 1e-4).flatten()[[0, 70, -1]]
    off[near] = (oracle[near] + 3 * ulp(oracle[near].abs().clamp_min(2.0), torch.bfloat16)).bfloat16()
    assert float((off[near].double() - oracle[near]).abs().max() / 2**-6) < accuracy.worst_ulp(native, oracle)
    verdict, comparison = judged(off, native, oracle)
    assert comparison.rule_failures == 3
    assert f"element {int(near[0])}:" in verdict


@pytest.mark.defence("accuracy_worst")
@pytest.mark.parametrize("where", [0, 77_777, 199_999])
def test_beyond_native_at_its_worst_nothing_is_excused(where: int) -> None:
    """A kernel that is nearer to the oracle almost everywhere, and ten times native's worst off at one element."""
    oracle, native, once = gated(200_000)
    step = float(ulp(oracle[where].abs().clamp_min(2.0), torch.bfloat16))
    once[where] = float(oracle[where]) + 10 * accuracy.worst_ulp(native, oracle) * step
    verdict, comparison = judged(once, native, oracle)
    assert comparison.rule_failures == 1
    assert f"element {where}:" in verdict


@pytest.mark.parametrize("length", [700, 1024, 5000])
def test_where_native_is_far_off_its_neighbours_may_not_be(length: int) -> None:
    """An outlier's error is large in absolute terms only, and a neighbour far off is still found, in any position."""
    oracle = normal(length).clamp(-3, 3)
    oracle[length // 2] = 5000.0
    native = oracle.bfloat16()
    assert abs(float(native[length // 2]) - 5000.0) >= 8, "half of the spacing there, and nearly so"
    for where in (0, length // 2 - 1, length - 1):
        candidate = native.clone()
        candidate[where] = float(oracle[where]) + 2000.0
        verdict, comparison = judged(candidate, native, oracle)
        assert comparison.rule_failures == 1, where
        assert f"element {where}:" in verdict


@pytest.mark.defence("accuracy_rms")
@pytest.mark.parametrize("constant", [0.0, 0.0005])
def test_constant_output_fails_where_the_answer_is_small(constant: float) -> None:
    """Scale 0.005: all zeros lie within atol of every element; the RMS error against the oracle does not."""
    oracle = 0.003 * normal(10_000).clamp(-3, 3)
    verdict, comparison = judged(torch.full((10_000,), constant).bfloat16(), oracle.bfloat16(), oracle)
    assert comparison.literal_failures == comparison.rule_failures == 0
    assert verdict.startswith("RMS error")


@pytest.mark.parametrize("scale", [30.0, 0.005])
def test_other_roundings_pass_and_a_percent_off_fails_at_any_scale(scale: float) -> None:
    oracle = scale * normal(50_000)
    native = oracle.bfloat16()
    other = (oracle + 0.5 * ulp(oracle, torch.bfloat16)).bfloat16()
    nearly = (oracle * (1 + 2.0**-10)).bfloat16()
    assert judged(nearly, native, oracle)[0] == ""
    assert judged(nearly, native, oracle, against_native=False)[0] == ""
    assert judged(other, native, oracle)[0] != "", "a rounding that is always up is an error of its own"
    assert judged((oracle * 1.03).bfloat16(), native, oracle)[0] != ""
    assert judged((oracle * 1.03).bfloat16(), native, oracle, against_native=False)[0] != ""


@pytest.mark.defence("accuracy_ulp")
def test_tolerance_below_half_a_ulp_refuses_no_honest_rounding() -> None:
    oracle = 30 * normal(50_000)
    native = oracle.bfloat16()
    # what rounds to nearest from a value one part in 2^12 away: now and then the next number
    verdict, comparison = judged((oracle * (1 + 2.0**-12)).bfloat16(), native, oracle, tolerance=1e-6)
    assert comparison.literal_failures > 1000
    assert comparison.max_ulp == 1
    assert verdict == ""


def test_scaled_inputs_are_judged_against_the_oracle_in_its_own_unit() -> None:
    """Native is far from the oracle here; being near native is worth nothing, and atol scales with the oracle."""
    oracle = 1e-4 * normal(10_000)
    native = (oracle + 5e-4).bfloat16()
    assert judged(native.clone(), native, oracle, against_native=False)[0] == "", "no farther than native is"
    far = (oracle + 1.5e-3).bfloat16()
    assert judged(far, native, oracle, against_native=True)[1].rule_failures == 0
    assert judged(far, native, oracle, against_native=False)[1].rule_failures > 9_000


@pytest.mark.defence("gate_nan")
@pytest.mark.parametrize(
    ("candidate", "native"),
    [
        ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0]),
        ([math.nan] * 3, [1.0, 2.0, 3.0]),
        ([1.0, math.nan, 3.0], [1.0, math.nan, 3.0]),
        ([1.0, 2.0, 3.0], [1.0, math.nan, 3.0]),
        ([1.0, math.inf, 3.0], [1.0, math.inf, 3.0]),
        ([1.0, math.inf, 3.0], [1.0, 2.0, 3.0]),
    ],
    ids=["one", "all", "where native has it", "in native alone", "infinity in both", "infinity"],
)
def test_nan_and_infinity_fail(candidate: list[float], native: list[float]) -> None:
    oracle = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    verdict, _ = judged(torch.tensor(candidate).bfloat16(), torch.tensor(native).bfloat16(), oracle)
    assert "NaN or Inf in the candidate or in native" in verdict


@pytest.mark.defence("accuracy_fp32_rms")
def test_tf32_in_an_fp32_case_fails_on_rms() -> None:
    oracle = normal(10_000)
    exact = oracle.float()
    bits = (exact.view(torch.int32) + 0x1000) & ~0x1FFF
    verdict, comparison = judged(bits.view(torch.float32), exact, oracle)
    assert comparison.rule_failures == 0
    assert verdict.startswith("RMS error")


def test_native_that_is_exact_by_luck_does_not_demand_exactness() -> None:
    """Native's error is 0; half a ULP, the least any kernel can promise, is still allowed."""
    oracle = torch.arange(1, 257, dtype=torch.float64)
    native = oracle.bfloat16()
    candidate = native.clone()
    candidate[255] = 258.0
    assert judged(candidate, native, native.double())[0].startswith("RMS error")
    assert judged(native.clone(), native, native.double())[0] == ""


def test_the_figures() -> None:
    oracle = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    native = oracle.bfloat16()
    candidate = torch.tensor([1.0, 2.0, 4.0, 8.5]).bfloat16()
    verdict, comparison = judged(candidate, native, oracle)
    assert comparison.elements == 4
    assert comparison.literal_failures == comparison.rule_failures == 1
    assert comparison.max_abs_error_native == 0.5
    assert comparison.rms_error == 0.25
    assert comparison.rms_error_native == 0.0
    assert comparison.max_ulp == 8, "between 8 and 16 a bf16 ULP is 1/16"
    assert comparison.p999_ulp == 8
    assert not comparison.bit_exact
    assert "element 3: got 8.5, native 8, oracle 8" in verdict


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.integers(0, 100), st.floats(0, 0.2))
def test_a_wider_tolerance_never_fails_more(first: float, second: float, seed: int, noise: float) -> None:
    oracle = normal(500, seed)
    native = oracle.bfloat16()
    candidate = (oracle + noise * normal(500, seed + 1)).bfloat16()
    tight, wide = (judged(candidate, native, oracle, tolerance=t)[1] for t in sorted((first, second)))
    assert wide.rule_failures <= tight.rule_failures <= tight.literal_failures
    assert wide.rms_error == tight.rms_error


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = normal(1000)
    native = oracle.bfloat16()
    candidate = (oracle * 1.02).bfloat16()
    whole = judged(candidate, native, oracle)
    monkeypatch.setattr(accuracy, "_CHUNK", 7)
    parts = judged(candidate, native, oracle)
    assert parts[0] == whole[0]
    for figure in ("literal_failures", "rule_failures", "max_ulp", "p999_ulp", "max_abs_error_native"):
        assert getattr(parts[1], figure) == getattr(whole[1], figure)
    assert parts[1].rms_error == pytest.approx(whole[1].rms_error)


@pytest.mark.defence("accuracy_each_output")
def test_each_output_is_held_to_its_own_error() -> None:
    """k is 0.6 % off: far above 1.5 times native's rounding by itself, and not together with a larger, exact q."""
    q, k = normal(65_536), normal(4_096, seed=1)
    native_q, native_k = q.bfloat16(), k.bfloat16()
    off = (native_k.double() * 1.006).bfloat16()
    together = Comparison(atol=1e-2, rtol=1e-2)
    together.add(native_q, native_q, q, against_native=True, extra_ulp=0)
    together.add(off, native_k, k, against_native=True, extra_ulp=0)
    assert "RMS error" in together.verdict()
    assert together.rms_error < 1.5 * together.rms_error_native


def test_outputs_of_two_dtypes_have_two_factors() -> None:
    """The one in bf16 is not judged as loosely as the one in fp32 after it."""
    x, y = normal(4_096), normal(4_096, seed=1)
    off = (x.bfloat16().double() * 1.012).bfloat16()
    for order in (1, -1):
        both = Comparison(atol=1e-1, rtol=1e-1)
        for got, native, oracle in [(off, x.bfloat16(), x), (y.float(), y.float(), y)][::order]:
            both.add(got, native, oracle, against_native=True, extra_ulp=0)
        assert "above 1.5 x native's" in both.verdict()
