"""LayerNorm and AdaLayerNorm: declarations, plans, native's values, and our kernels in Triton's interpreter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from candidates.adalayernorm import op as ada
from candidates.adalayernorm import rewrite as ada_rewrite
from candidates.layernorm import launch, rewrite
from candidates.layernorm import op as ln
from candidates.layernorm.rows import modulation, rows_of
from harness.measure.inputs import SeededDraw
from harness.op import Op
from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.manifest import check_against_op, load_manifest
from tests.candidates import interpreted

SHAPES = Path(__file__).parents[2] / "shapes"
EPS = 1e-6


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.layernorm_rehearsal", interpret=True)


# --- our kernels ------------------------------------------------------------------------------------------------


def test_norms_agree_with_fp64(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["norms"]) == 16
    for name, seen in rehearsal["norms"].items():
        assert len(seen) == 2, name
        # a mean of 100 leaves fp32 two digits less for the deviations
        assert max(seen.values()) < (5e-5 if name == "offset" else 5e-6), (name, seen)


def test_modulated_norms_agree_with_fp64(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["modulated"]) == 19
    for name, seen in rehearsal["modulated"].items():
        assert max(seen.values()) < 1e-5, (name, seen)


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["offsets"] == [b * (1 << 40) + 2_000_000 * 5120 for b in (5, 6)]


def test_opcheck_accepts_the_fakes(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 16
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_empty_inputs(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["empty"] == [[0, 3, 512]] * 2


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At real shapes: no local memory, and 128-bit loads but where a thread has four elements of a chunk."""
    facts = interpreted.run("tests.candidates.hopper_layernorm", interpret=False)
    assert len(facts) == 7
    for name, kernel in facts.items():
        wide = name != "layernorm_tile 32760x1536"
        assert kernel == {"local_bytes": 0, "load_bits": 128 if wide else 64}, name


@given(rows=st.integers(1, 10**6), width=st.integers(1, 16384), item=st.sampled_from([0, 2, 4]), residual=st.booleans())
def test_tiles_hold_a_row(rows: int, width: int, item: int, residual: bool) -> None:
    plan = launch.make_plan(rows, width, item, residual)
    for size in (plan.rows, plan.chunk, plan.warps):
        assert size & (size - 1) == 0
    assert plan.rows == 1 or plan.chunk >= width
    assert plan.warps <= 16
    columns = -(-width // plan.chunk) * plan.chunk
    assert columns - width < max(width, 512)
    assert 1 <= plan.rows * columns / (32 * plan.warps) <= 48
    assert item or not plan.first


@pytest.mark.parametrize(
    ("args", "plan"),
    [
        ((32760, 1536, 4, False), launch.Plan(rows=1, chunk=512, warps=4, first=False)),
        ((32760, 1536, 4, True), launch.Plan(rows=1, chunk=512, warps=4, first=True)),
        ((32760, 1536, 0, False), launch.Plan(rows=1, chunk=512, warps=4, first=False)),
        ((75600, 5120, 4, False), launch.Plan(rows=1, chunk=1024, warps=4, first=False)),
        ((4096, 3072, 2, False), launch.Plan(rows=1, chunk=1024, warps=4, first=True)),
        ((128, 3072, 2, False), launch.Plan(rows=1, chunk=1024, warps=4, first=True)),
        ((128, 3072, 2, True), launch.Plan(rows=1, chunk=1024, warps=4, first=True)),
    ],
)
def test_the_plans_that_were_measured(args: tuple[int, int, int, bool], plan: launch.Plan) -> None:
    assert launch.make_plan(*args) == plan


def test_rows_and_weights_that_do_not_fit_are_errors() -> None:
    with pytest.raises(ValueError, match="4 dims"):
        rows_of(torch.ones(1, 2, 3, 4))
    with pytest.raises(ValueError, match="longer than 16384"):
        launch.layernorm(torch.ones(1, 1, 16385), None, None, EPS)
    with pytest.raises(ValueError, match="both be given"):
        launch.layernorm(torch.ones(1, 1, 8), torch.ones(8), None, EPS)


@pytest.mark.parametrize("shape", [(2, 5), (3, 8), (2, 2, 8), (2, 4, 1, 8), (2, 3, 2, 8), (8,), (2, 1, 1, 1, 8)])
def test_a_modulation_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        modulation(torch.ones(shape), rows_of(torch.ones(2, 6, 8)))


@pytest.mark.parametrize(
    ("shape", "strides_and_tokens"),
    [
        ((2, 8), (8, 0, 6)),
        ((2, 1, 8), (8, 0, 6)),
        ((1, 8), (0, 0, 6)),
        ((2, 6, 8), (48, 8, 1)),
        ((2, 3, 1, 8), (24, 8, 2)),
        ((2, 6, 1, 8), (48, 8, 1)),
    ],
)
def test_tokens_that_share_a_modulation(shape: tuple[int, ...], strides_and_tokens: tuple[int, int, int]) -> None:
    assert modulation(torch.ones(shape), rows_of(torch.ones(2, 6, 8))).arguments == strides_and_tokens


# --- native -----------------------------------------------------------------------------------------------------


def case(layout: Layout = Layout.CONTIGUOUS, dtype: Dtype = Dtype.FP32, **params: Any) -> Case:
    dims = {"B": 2, "S": 6, "D": 8}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": EPS, **params},
        dtype=dtype,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.DERIVED,
        rehearsal=dims,
    )


def draw(dtype: torch.dtype = torch.float32) -> SeededDraw:
    return SeededDraw(0, dtype, torch.device("cpu"))


def by_hand(x: Tensor) -> Tensor:
    x = x.double()
    deviation = x - x.mean(-1, keepdim=True)
    return deviation / (deviation.square().mean(-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize(("weights", "dtype"), [("none", None), ("activation", Dtype.BF16), ("float32", Dtype.BF16)])
def test_layernorm_native(weights: str, dtype: Dtype | None) -> None:
    one = case(dtype=dtype or Dtype.FP32, weights=weights)
    args = ln.OP.inputs(one, draw(getattr(torch, one.dtype)))
    expected = by_hand(args["x"])
    if weights == "none":
        assert args["weight"] is None
        assert args["bias"] is None
    else:
        assert args["weight"].dtype is (torch.float32 if weights == "float32" else torch.bfloat16)
        expected = expected * args["weight"].double() + args["bias"].double()
    y = ln.native(**args)
    assert y.dtype is args["x"].dtype
    torch.testing.assert_close(y.double(), expected, rtol=2**-8 if dtype else 1e-5, atol=1e-5)
    torch.testing.assert_close(rewrite.shifted_moments.run(**args), y, rtol=2**-7 if dtype else 1e-5, atol=1e-5)


def spread_by_hand(m: Tensor, tokens: int) -> Tensor:
    """One row of the modulation for each of (2, tokens) rows, by index."""
    rows = m.reshape(2, -1, m.shape[-1])
    each = tokens // rows.shape[1]
    return torch.stack([torch.stack([rows[b, s // each] for s in range(tokens)]) for b in range(2)])


@pytest.mark.parametrize("formula", [ada.VLLM_OMNI, ada.WAN])
@pytest.mark.parametrize(
    ("modulation", "frames", "shapes"),
    [
        ("batch-2d", 1, ((2, 8), (2, 8))),
        ("batch", 1, ((2, 1, 8), (2, 1, 8))),
        ("token", 1, ((2, 6, 8), (2, 6, 8))),
        ("frame", 3, ((2, 3, 1, 8), (2, 3, 1, 8))),
        ("frame-token", 3, ((2, 3, 1, 8), (2, 6, 8))),
    ],
)
def test_adalayernorm_native(formula: str, modulation: str, frames: int, shapes: Any) -> None:
    one = case(dtype=Dtype.BF16, formula=formula, modulation=modulation, frames=frames)
    assert ada.OP.check(one) is None
    args = ada.OP.inputs(one, draw(torch.bfloat16))
    scale, shift = args["scale"], args["shift"]
    assert (tuple(scale.shape), tuple(shift.shape)) == shapes
    assert scale.dtype is (torch.float32 if formula == ada.WAN else torch.bfloat16)
    expected = by_hand(args["x"]) * (1 + spread_by_hand(scale, 6).double()) + spread_by_hand(shift, 6).double()
    y = ada.native(**args)
    assert y.dtype is torch.bfloat16
    torch.testing.assert_close(y.double(), expected, rtol=2**-6, atol=2**-6)
    torch.testing.assert_close(ada_rewrite.shifted_moments.run(**args).double(), expected, rtol=2**-8, atol=1e-4)
    upcast = {name: value.double() if isinstance(value, Tensor) else value for name, value in args.items()}
    torch.testing.assert_close(ada.native(**upcast), expected)
    item = 4 if formula == ada.WAN else 2
    assert ada.OP.bytes_moved(one) == 2 * 96 * 2 + (scale.numel() + shift.numel()) * item


def test_where_the_two_formulas_round() -> None:
    x = torch.randn(2, 64, 512, dtype=torch.bfloat16)
    scale, shift = torch.randn(2, 2, 1, 512, dtype=torch.bfloat16)
    norm = torch.nn.functional.layer_norm(x.float(), (512,), eps=EPS)
    rounded = norm.bfloat16() * (1 + scale) + shift
    assert torch.equal(ada.native(x, scale, shift, EPS, ada.VLLM_OMNI), rounded)
    once = (norm * (1 + scale.float()) + shift.float()).bfloat16()
    assert torch.equal(ada.native(x, scale.float(), shift.float(), EPS, ada.WAN), once)
    assert not torch.equal(rounded, once)


@pytest.mark.parametrize("formula", [ada.VLLM_OMNI, ada.WAN])
def test_residual_context(formula: str) -> None:
    one = case(dtype=Dtype.BF16, formula=formula, modulation="batch", frames=1)
    context = ada.OP.context("residual_gate")
    args = context.inputs(one, draw(torch.bfloat16))
    y, h = context.compose(ada.native)(**args)
    update = args["x"].float() * args["gate"].float()
    if formula == ada.VLLM_OMNI:
        update = update.bfloat16().float()
    assert torch.equal(h, (args["residual"].float() + update).bfloat16())
    assert torch.equal(y, ada.native(h, args["scale"], args["shift"], EPS, formula))
    assert context.bytes_moved(one) == 4 * 96 * 2 + 3 * 16 * (4 if formula == ada.WAN else 2)


def test_modulate_context() -> None:
    one = case(weights="none")
    context = ln.OP.context("modulate")
    args = context.inputs(one, draw())
    y = context.compose(ln.native)(**args)
    expected = by_hand(args["x"]) * (1 + args["scale"]) + args["shift"]
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    assert context.bytes_moved(one) == 4 * (2 * 96 + 2 * 16)


@pytest.mark.parametrize(
    ("op", "params", "sentence"),
    [
        (ln.OP, {"weights": "bf16"}, "weights=bf16 is none of"),
        (ada.OP, {"formula": "wan", "modulation": "row", "frames": 1}, "modulation=row"),
        (ada.OP, {"formula": "fp32", "modulation": "token", "frames": 1}, "formula=fp32"),
        (ada.OP, {"formula": "wan", "modulation": "frame", "frames": 4}, "must divide S=6"),
        (ada.OP, {"formula": "wan", "modulation": "token", "frames": 3}, "has no frames"),
    ],
)
def test_impossible_cases(op: Op, params: dict[str, Any], sentence: str) -> None:
    assert sentence in (op.check(case(**params)) or "")


@pytest.mark.parametrize("op", [ln.OP, ada.OP], ids=lambda op: op.id)
def test_the_manifest_fits_the_op_and_its_twins_are_few(op: Op) -> None:
    manifest = load_manifest(SHAPES / f"{op.id}.yaml")
    assert check_against_op(manifest, op) == []
    assert len({one.rehearsed().content for one in manifest.cases}) <= 12
    assert any(one.numel > 2**31 for one in manifest.cases)


# --- on a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("width", [64, 100, 1536, 2240, 5120, 16384])
def test_gpu_tile_kernel_rounds_once_and_repeats(width: int, batch: int) -> None:
    x = torch.randn(batch, 7, width, device="cuda", dtype=torch.bfloat16)
    scale, shift = torch.randn(2, batch, 1, width, device="cuda", dtype=torch.bfloat16)
    y = launch.modulated_layernorm(x, scale, shift, EPS)
    oracle = ada.native(x.double(), scale.double(), shift.double(), EPS, ada.WAN)
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
    assert torch.equal(launch.modulated_layernorm(x, scale, shift, EPS), y)


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    x = torch.randn((1, 524_416, 4096), device="cuda", dtype=torch.bfloat16)
    right = ln.native(x[:, -9:], None, None, EPS)
    torch.testing.assert_close(launch.layernorm(x, None, None, EPS)[:, -9:], right, rtol=2**-7, atol=1e-5)
    # the last column of a row lies beyond 2^31 too
    transposed = x.view(1, 8192, 262_208).transpose(1, 2)[:, -9:]
    right = ln.native(transposed, None, None, EPS)
    torch.testing.assert_close(launch.layernorm(transposed, None, None, EPS), right, rtol=2**-7, atol=1e-5)
