"""RMSNorm: the declaration, the plans, and our kernels in Triton's interpreter."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from candidates.rmsnorm.launch import Plan, even_step, make_plan, residual_rmsnorm, rmsnorm, split_row
from candidates.rmsnorm.op import OP, native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.measure.inputs import SeededDraw
from harness.schema.case import Case, Confidence, Dtype, Layout
from tests.candidates import interpreted


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.rmsnorm_rehearsal", interpret=True)


def test_kernels_agree_with_the_fp64_oracle(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["numerics"]) == 28
    for name, seen in rehearsal["numerics"].items():
        assert seen["error"] < 2e-6, (name, seen)
        assert seen["residual_error"] < 2e-6, (name, seen)
        assert seen["sum_exact"], name
        assert seen["contiguous"], name
        assert seen["input_kept"], name


def test_the_sum_has_the_strides_of_x(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["numerics"]["transposed"]["h_strides"] == [1152, 96, 384, 1]
    assert rehearsal["numerics"]["sliced"]["h_strides"] == [384, 128, 32, 1]


def test_kernels_round_where_they_are_told_to(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["rounding"].keys() == {"96", "1536", "17000"}
    for width, seen in rehearsal["rounding"].items():
        assert seen == {"before_weight": True, "residual": True, "once": False}, width


def test_only_the_last_rounding_is_the_interpreters(rehearsal: dict[str, Any]) -> None:
    """It truncates to bf16; the roundings before the last are emulated, or two of them would outgrow one step."""
    assert rehearsal["bf16"] == {"sum_exact": True, "steps": 1}


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    expected = []
    for row in (2_000_000_000, 2_000_000_001):
        i01, i2 = divmod(row, 1000)
        i0, i1 = divmod(i01, 7)
        expected.append((i0 << 40) + (i1 << 33) + i2 * 5120)
    expected += [row * step for step in (5120, 128) for row in (2_000_000_000, 2_000_000_001)]
    assert rehearsal["offsets"] == expected


def test_opcheck_accepts_the_fakes(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 24
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_empty_input(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["empty"] == [0, 64]


def test_more_than_four_dims_is_an_error() -> None:
    with pytest.raises(ValueError, match="5 dims"):
        rmsnorm(torch.randn(1, 2, 2, 2, 8), torch.ones(8), 1e-6)


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At real shapes: 128-bit global loads, no local memory. Needs ptxas (it comes with Triton), no GPU."""
    for name, kernel in interpreted.run("tests.candidates.hopper_rmsnorm", interpret=False).items():
        assert kernel == {"local_bytes": 0, "load_bits": 128}, name


@given(rows=st.integers(1, 10**6), width=st.integers(1, 16384), inputs=st.sampled_from([1, 2]))
def test_tiles_cover_a_row(rows: int, width: int, inputs: int) -> None:
    plan = make_plan(rows, width, inputs, 132)
    head, tail = split_row(width, plan.warps)
    assert head <= width <= head + tail if tail else head == width
    assert tail <= head
    for size in (head, tail, plan.rows, plan.warps):
        assert size & (size - 1) == 0
    assert 2 <= plan.warps <= 16
    assert plan.rows * (head + tail) <= max(1024, 48 * 32 * plan.warps)


@pytest.mark.parametrize(
    ("rows", "width", "inputs", "plan"),
    [
        (4, 128, 1, Plan(rows=8, warps=4)),
        (123840, 128, 1, Plan(rows=8, warps=4)),
        (1, 1024, 1, Plan(rows=1, warps=4)),
        (2048, 1024, 1, Plan(rows=1, warps=2)),
        (64, 2048, 1, Plan(rows=1, warps=4)),
        (2048, 2048, 1, Plan(rows=1, warps=2)),
        (8192, 2048, 1, Plan(rows=1, warps=4)),
        (512, 1536, 1, Plan(rows=1, warps=2)),
        (32760, 1536, 1, Plan(rows=1, warps=4)),
        (512, 5120, 1, Plan(rows=1, warps=4)),
        (75600, 5120, 1, Plan(rows=1, warps=4)),
        (1, 2048, 2, Plan(rows=1, warps=8)),
        (2048, 2048, 2, Plan(rows=1, warps=8)),
        (32760, 1536, 2, Plan(rows=1, warps=4)),
        (75600, 5120, 2, Plan(rows=1, warps=8)),
    ],
)
def test_plans_of_shapes_that_were_measured(rows: int, width: int, inputs: int, plan: Plan) -> None:
    assert make_plan(rows, width, inputs, 132) == plan


@pytest.mark.parametrize(
    ("width", "warps", "head", "tail"),
    [(128, 4, 128, 0), (1536, 2, 1024, 512), (1536, 4, 1024, 1024), (2240, 1, 2048, 256), (5120, 8, 4096, 2048)],
)
def test_tails_have_eight_elements_per_thread(width: int, warps: int, head: int, tail: int) -> None:
    assert split_row(width, warps) == (head, tail)


def test_even_step_of_views() -> None:
    packed = torch.randn(2, 3, 4, 96)
    assert even_step(packed) == 96
    assert even_step(packed[..., 32:64]) == 96
    assert even_step(packed.transpose(1, 2)) is None
    assert even_step(packed[:1, :1]) == 96
    assert even_step(torch.randn(4, 32).as_strided((4, 1, 32), (32, 37, 1))) == 32


def tiny(layout: Layout = Layout.CONTIGUOUS) -> Case:
    dims = {"B": 2, "S": 3, "D": 8}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": 1e-6, "rounding": ONCE, "weight": True},
        dtype=Dtype.FP32,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.DERIVED,
        rehearsal=dims,
    )


def test_native_is_rms_norm_in_any_float_dtype() -> None:
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(native(x, weight, 1e-5), weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    half = native(x.bfloat16(), weight.bfloat16(), 1e-5)
    torch.testing.assert_close(half.double(), native(x.bfloat16().double(), weight.bfloat16().double(), 1e-5),
                               rtol=2**-8, atol=0)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_named_formulas_are_those_of_the_models_classes(dtype: torch.dtype) -> None:
    """Bit for bit: torch's, diffusers' with and without a weight, and transformers' RMSNorms."""
    from diffusers.models.normalization import RMSNorm
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as omni

    x, weight = torch.randn(64, 128, dtype=dtype), (1 + 0.2 * torch.randn(128)).to(dtype)
    weightless = RMSNorm(128, eps=1e-6, elementwise_affine=False)
    assert torch.equal(native(x, None, 1e-6), weightless(x))
    theirs = RMSNorm(128, eps=1e-6), omni.Qwen3OmniMoeThinkerTextRMSNorm(128), omni.Qwen3OmniMoeTextRMSNorm(128)
    for module in (*theirs, torch.nn.RMSNorm(128, eps=1e-6)):
        module.weight = torch.nn.Parameter(weight)
        rounding = ONCE if isinstance(module, torch.nn.RMSNorm) else BEFORE_WEIGHT
        assert torch.equal(native(x, weight, 1e-6, rounding), module(x)), type(module)
    same = torch.equal(native(x, weight, 1e-6), native(x, weight, 1e-6, BEFORE_WEIGHT))
    assert same == (dtype is torch.float32)


@pytest.mark.parametrize("run", [native, rmsnorm])
def test_rounding_before_a_weight_of_another_dtype_is_an_error(run: Any) -> None:
    """transformers would round to bf16 and hand on fp32, diffusers not round at all; neither is this op."""
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(8)
    with pytest.raises(ValueError, match=r"takes a weight of x's dtype torch\.bfloat16, not torch\.float32"):
        run(x, weight, 1e-6, BEFORE_WEIGHT)
    with pytest.raises(ValueError, match="rounding='twice' is neither once nor before_weight"):
        native(x, weight, 1e-6, "twice")


def test_cases_name_a_formula_that_there_is() -> None:
    def said(**params: Any) -> str | None:
        return OP.check(tiny().model_copy(update={"params": {"eps": 1e-6, **params}}))

    assert said(rounding=ONCE, weight=False) is said(rounding=BEFORE_WEIGHT, weight=True) is None
    assert said(rounding="twice", weight=True) == "rounding=twice is neither once nor before_weight"
    assert "needs a weight" in str(said(rounding=BEFORE_WEIGHT, weight=False))


def test_only_another_formula_than_the_authoritys_is_named() -> None:
    draw = SeededDraw(0, torch.float32, torch.device("cpu"))
    bare = tiny().model_copy(update={"params": {"eps": 1e-6, "rounding": ONCE, "weight": False}})
    before = tiny().model_copy(update={"params": {"eps": 1e-6, "rounding": BEFORE_WEIGHT, "weight": True}})
    assert OP.inputs(tiny(), draw).keys() == {"x", "weight", "eps"}
    assert OP.inputs(before, draw)["rounding"] == BEFORE_WEIGHT
    assert OP.inputs(bare, draw)["weight"] is None
    assert OP.bytes_moved(bare) == OP.bytes_moved(tiny()) - 8 * 4


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.SLICED, Layout.TRANSPOSED])
def test_residual_context(layout: Layout) -> None:
    context = OP.context("residual_add")
    args = context.inputs(tiny(layout), SeededDraw(0, torch.float32, torch.device("cpu")))
    normed, h = context.compose(native)(**args)
    assert torch.equal(h, args["x"] + args["residual"])
    assert not torch.equal(args["x"], args["residual"])
    assert torch.equal(normed, native(h, args["weight"], args["eps"]))
    assert context.bytes_moved(tiny(layout)) == 4 * (4 * 48 + 8)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(37, 128), (64, 128), (33, 1536), (7, 5120), (5, 2240), (3, 20000), (2, 3, 4, 96)])
def test_gpu_agrees_and_repeats(shape: tuple[int, ...]) -> None:
    x, residual = torch.randn((2, *shape), device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(shape[-1], device="cuda", dtype=torch.bfloat16)
    y = rmsnorm(x, weight, 1e-6)
    oracle = native(x.double(), weight.double(), 1e-6)
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-6).all()
    normed, h = residual_rmsnorm(x, weight, 1e-6, residual)
    assert torch.equal(h, x + residual)
    assert torch.equal(normed, rmsnorm(h, weight, 1e-6))
    assert torch.equal(rmsnorm(x, weight, 1e-6), y)
    bare = rmsnorm(x, None, 1e-6)
    oracle = native(x.double(), None, 1e-6)
    assert ((bare - oracle).abs() <= 2**-8 * oracle.abs() + 1e-6).all()
    assert torch.equal(rmsnorm(x, weight, 1e-6, BEFORE_WEIGHT), bare * weight)
    assert torch.equal(residual_rmsnorm(x, weight, 1e-6, residual, BEFORE_WEIGHT)[0], rmsnorm(h, None, 1e-6) * weight)


@pytest.mark.gpu
def test_gpu_heads_of_a_packed_projection() -> None:
    packed = torch.randn((2, 300, 3 * 24 * 128), device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    heads = packed[..., 24 * 128 : 2 * 24 * 128].unflatten(-1, (24, 128))
    for x in (heads, heads[:1], heads.transpose(1, 2)):
        assert torch.equal(rmsnorm(x, weight, 1e-6), rmsnorm(x.contiguous(), weight, 1e-6))


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    x = torch.randn((524_416, 4096), device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(rmsnorm(x, weight, 1e-6)[-9:], native(x[-9:], weight, 1e-6), rtol=2**-7, atol=0)
