"""The generator's bytes, its moments, layouts and fingerprints."""

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.measure import inputs
from harness.measure.inputs import SeededDraw, Variant, empty_with_layout, fill_normal, fingerprint, storage_fingerprint
from harness.measure.ranks import Seat
from harness.schema.case import Layout

CPU = torch.device("cpu")


def drawn(count: int, seed: int = 1, name: str = "x", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    flat = torch.empty(count, dtype=dtype)
    inputs.fill_normal(flat, seed, name, 0.0, 1.0)
    return flat


@pytest.mark.defence("inputs_same_bytes")
def test_golden_bytes() -> None:
    """These bytes are what stored evidence was measured on: a change of them is a change of every input hash."""
    values = drawn(4096, seed=20_260_101)
    assert values[:4].tolist() == GOLDEN_VALUES
    assert hashlib.sha256(values.numpy().tobytes()).hexdigest() == GOLDEN_FP32
    as_int = drawn(4096, seed=20_260_101, dtype=torch.bfloat16).view(torch.int16)
    assert hashlib.sha256(as_int.numpy().tobytes()).hexdigest() == GOLDEN_BF16
    assert fingerprint(values) == GOLDEN_FINGERPRINT


GOLDEN_VALUES = [0.4527287185192108, -1.4542555809020996, 1.8534127473831177, -0.5144140124320984]
GOLDEN_FP32 = "4d5728dcc5cbdb827f8159b581675585c60f6e0ef4a131d823245590989a96b1"
GOLDEN_BF16 = "a9391c7603044f079fb2bd5fb46b6085850801c4f55c0d93e1a79799c9bf8f67"
GOLDEN_FINGERPRINT = "687c89b402b97bfe"


@settings(deadline=None, max_examples=30)
@given(chunk=st.integers(1, 300), count=st.integers(0, 700), seed=st.integers(0, 2**40))
def test_values_do_not_depend_on_the_chunk(chunk: int, count: int, seed: int) -> None:
    whole = drawn(count, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_CHUNK", chunk)
        parts = drawn(count, seed)
        assert torch.equal(parts, whole)
        assert fingerprint(parts) == _fingerprint_in_one(whole)


def _fingerprint_in_one(tensor: torch.Tensor) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_CHUNK", 1 << 20)
        return fingerprint(tensor)


def test_moments_are_about_those_of_a_unit_normal() -> None:
    values = drawn(1_000_000, seed=5).double()
    assert float(values.mean()) == pytest.approx(0, abs=4e-3)
    assert float(values.var()) == pytest.approx(1, abs=5e-3)
    assert float((values**3).mean()) == pytest.approx(0, abs=1e-2)
    # the sum of four uniforms has kurtosis 3 - 6/5/4
    assert float((values**4).mean()) == pytest.approx(2.7, abs=2e-2)
    assert float(values.abs().max()) <= 4 / (2 * (1 / 3) ** 0.5) + 1e-3
    neighbours = float((values[:-1] * values[1:]).mean())
    assert neighbours == pytest.approx(0, abs=4e-3)


def test_location_and_scale() -> None:
    flat = torch.empty(100_000)
    fill_normal(flat, 3, "w", 1.0, 0.2)
    assert float(flat.mean()) == pytest.approx(1.0, abs=3e-3)
    assert float(flat.std()) == pytest.approx(0.2, abs=2e-3)


def test_seed_and_name_both_make_other_values() -> None:
    first = drawn(1000)
    for other in (drawn(1000, seed=2), drawn(1000, name="y")):
        assert float((first == other).double().mean()) < 0.01
        assert abs(float((first * other).mean())) < 0.15


@pytest.mark.defence("inputs_differ_by_batch")
def test_batches_differ() -> None:
    x = SeededDraw(1, torch.bfloat16, CPU).activation("x", (2, 3, 64))
    assert not torch.equal(x[0], x[1])


@pytest.mark.defence("inputs_drawn_weights")
def test_weights_are_drawn() -> None:
    weight = SeededDraw(1, torch.bfloat16, CPU).weight("w", (64,), loc=1.0, scale=0.2)
    assert len(weight.unique()) > 40


@pytest.mark.parametrize(
    ("variant", "scale", "shift"),
    [(Variant.NORMAL, 1, 0), (Variant.LARGE, 64, 0), (Variant.SMALL, 2.0**-10, 0), (Variant.OFFSET, 1, 8)],
)
def test_variants_scale_and_shift_activations_alone(variant: Variant, scale: float, shift: float) -> None:
    plain, other = (SeededDraw(1, torch.float32, CPU, v) for v in (Variant.NORMAL, variant))
    assert torch.equal(other.activation("x", (50,)), plain.activation("x", (50,)) * scale + shift)
    assert torch.equal(other.weight("w", (50,)), plain.weight("w", (50,)))


def test_weights_can_stay_while_activations_change() -> None:
    first, second = SeededDraw(1, torch.float32, CPU), SeededDraw(5, torch.float32, CPU, weight_seed=1)
    assert torch.equal(first.weight("w", (50,)), second.weight("w", (50,)))
    assert not torch.equal(first.activation("x", (50,)), second.activation("x", (50,)))


SHAPES = [((4, 6), layout) for layout in Layout if layout is not Layout.CHANNELS_LAST]
SHAPES += [((2, 3, 4), Layout.TRANSPOSED), ((1, 3, 4), Layout.ODD_STRIDE)]
SHAPES += [((2, 3, 4, 5), Layout.CHANNELS_LAST), ((2, 3, 2, 4, 5), Layout.CHANNELS_LAST)]


@pytest.mark.parametrize(("shape", "layout"), SHAPES)
def test_every_layout_holds_the_same_values(shape: tuple[int, ...], layout: Layout) -> None:
    plain = SeededDraw(1, torch.bfloat16, CPU).activation("x", shape)
    laid_out = SeededDraw(1, torch.bfloat16, CPU).activation("x", shape, layout)
    assert torch.equal(plain, laid_out)
    assert fingerprint(plain) == fingerprint(laid_out)
    if layout is not Layout.CONTIGUOUS:
        assert laid_out.stride() != plain.stride() or layout is Layout.ODD_STRIDE


def test_strides_of_the_layouts() -> None:
    def strides(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
        return empty_with_layout(shape, torch.bfloat16, CPU, layout).stride()

    assert strides((2, 3, 4), Layout.SLICED) == (36, 12, 1)
    assert strides((2, 3, 4), Layout.TRANSPOSED) == (12, 1, 3)
    assert strides((3, 4), Layout.TRANSPOSED) == (1, 3)
    assert strides((1, 3, 1, 4), Layout.ODD_STRIDE) == (37, 4, 37, 1)
    assert strides((2, 3, 4, 5), Layout.CHANNELS_LAST) == (60, 1, 15, 3)
    assert strides((2, 3, 2, 4, 5), Layout.CHANNELS_LAST) == (120, 1, 60, 15, 3)
    with pytest.raises(ValueError, match="channels_last needs 4 or 5 dims"):
        strides((2, 3), Layout.CHANNELS_LAST)
    with pytest.raises(ValueError, match="transposed needs 2 dims"):
        strides((2,), Layout.TRANSPOSED)


def test_memory_beside_a_slice_is_nan() -> None:
    x = SeededDraw(1, torch.float32, CPU).activation("x", (2, 4), Layout.SLICED)
    whole = torch.as_strided(x, (2, 12), (12, 1), 0)
    assert whole[:, :4].isnan().all()
    assert whole[:, 8:].isnan().all()
    assert torch.equal(whole[:, 4:8], x)


@settings(deadline=None, max_examples=60)
@given(
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    count=st.integers(1, 200),
    where=st.integers(0, 10**6),
    bit=st.integers(0, 31),
)
def test_fingerprint_sees_any_single_bit(dtype: torch.dtype, count: int, where: int, bit: int) -> None:
    tensor = drawn(count, dtype=dtype)
    as_int = tensor.view(torch.int16 if dtype is torch.bfloat16 else torch.int32)
    before = fingerprint(tensor)
    as_int[where % count] ^= torch.tensor(1 << (bit % (8 * tensor.element_size())), dtype=torch.int64).to(as_int.dtype)
    assert fingerprint(tensor) != before


@settings(deadline=None, max_examples=30)
@given(count=st.integers(2, 200), first=st.integers(0, 10**6), second=st.integers(0, 10**6))
def test_fingerprint_sees_two_values_swapped(count: int, first: int, second: int) -> None:
    tensor = torch.arange(count, dtype=torch.float32)
    i, j = first % count, second % count
    before = fingerprint(tensor)
    tensor[[i, j]] = tensor[[j, i]]
    assert (fingerprint(tensor) == before) == (i == j)


@pytest.mark.defence("gate_whole_storage")
def test_storage_fingerprint_sees_what_lies_beside_a_view() -> None:
    base = torch.zeros(3, 12)
    view = base[:, 4:8]
    plain, whole = fingerprint(view), inputs.storage_fingerprint(view)
    base[1, 3] = 1.0
    assert fingerprint(view) == plain
    assert inputs.storage_fingerprint(view) != whole
    assert inputs.storage_fingerprint is storage_fingerprint


@pytest.mark.gpu
def test_a_gpu_draws_the_same_bytes() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for variant in Variant:
            here, there = (SeededDraw(7, dtype, torch.device(kind), variant) for kind in ("cpu", "cuda"))
            x_here, x_there = (draw.activation("x", (3, 100_003)) for draw in (here, there))
            assert torch.equal(x_here, x_there.cpu())
            assert fingerprint(x_here) == fingerprint(x_there)


def test_ranks_draw_other_activations_and_the_same_weights() -> None:
    one = SeededDraw(7, torch.float32, torch.device("cpu"))
    seats = [Seat(rank, 2, "pair") for rank in (0, 1)]
    first, second = (SeededDraw(7, torch.float32, torch.device("cpu"), seat=seat) for seat in seats)
    assert torch.equal(first.activation("x", (4, 8)), one.activation("x", (4, 8)))
    assert not torch.equal(second.activation("x", (4, 8)), first.drawn["x"])
    assert torch.equal(second.weight("w", (8,)), one.weight("w", (8,)))
    assert (one.rank, one.ranks, one.group) == (0, 1, "")
    assert (second.rank, second.ranks, second.group) == (1, 2, "pair")
