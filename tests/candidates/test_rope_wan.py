"""Rotary embedding: the declaration, native against complex numbers, the plans, our kernel in Triton's interpreter."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from candidates.rope_wan import rewrite
from candidates.rope_wan.launch import Plan, make_plan, rope
from candidates.rope_wan.op import OP, native
from candidates.rope_wan.tables import halved
from harness.measure.inputs import SeededDraw, Variant
from harness.op import Args
from harness.schema.case import Case, Dtype, Layout
from tests.candidates import interpreted
from tests.candidates.rope_cases import FORMS, rope_case


def drawn(case: Case, context: str | None = None, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Args:
    return (OP.context(context) if context else OP).inputs(case, SeededDraw(0, dtype, torch.device(device)))


def upcast(args: Args) -> Args:
    return {name: y.double() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in args.items()}


def by_rotating_numbers(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """One complex product for each pair, looked up one by one; as different from native as can be."""
    B, S, H = x.shape[:3]
    cos, sin = halved(cos, sin, pairs, width)
    y = x.double().clone()
    half = cos.shape[-1]
    for b in range(B):
        for s in range(S):
            for h in range(H):
                row = {2: (s,), 3: (b, s), 4: (b, h, s)}[cos.ndim]
                for i in range(half):
                    first, second = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + half)
                    turned = complex(x[b, s, h, first], x[b, s, h, second]) * complex(cos[row][i], sin[row][i])
                    y[b, s, h, first], y[b, s, h, second] = turned.real, turned.imag
    return y


# --- native -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("rotary_dim", [8, 6])
def test_native_turns_pairs(form: dict[str, Any], rotary_dim: int) -> None:
    if form["form"] == "complex" and rotary_dim == 6:
        pytest.skip("complex tables turn whole heads")
    args = drawn(rope_case(B=2, S=3, H=2, D=8, rotary_dim=rotary_dim, **form))
    torch.testing.assert_close(native(**upcast(args)), by_rotating_numbers(**args), rtol=1e-6, atol=1e-6)


def test_bf16_tables_round_each_operation_and_fp32_tables_the_result() -> None:
    bf16 = drawn(rope_case(dtype=Dtype.BF16, table_dtype="bfloat16"), dtype=torch.bfloat16)
    x1, x2 = bf16["x"].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = bf16["cos"][:, None], bf16["sin"][:, None]
    assert native(**bf16)[..., 0::2].equal(x1 * cos - x2 * sin)
    fp32 = drawn(rope_case(dtype=Dtype.BF16), dtype=torch.bfloat16)
    assert fp32["cos"].dtype is torch.float32
    assert native(**fp32).equal(native(**(fp32 | {"x": fp32["x"].float()})).bfloat16())


@pytest.mark.parametrize("positions", ["shared", "per_batch"])
def test_the_real_twin_of_the_complex_form(positions: str) -> None:
    """Bit for bit in fp32, as on a CPU no product is fused; in bf16 with fp32 tables too."""
    args = drawn(rope_case(form="complex", positions=positions), dtype=torch.bfloat16)
    real = args | dict(zip(("cos", "sin"), halved(args["cos"], None, "interleaved", "half"), strict=True))
    assert native(**args).equal(native(**(real | {"form": "rotate_half"})))
    assert native(**args).equal(rewrite.real_form.run(**args))


def test_the_oracle_of_every_form_is_fp64() -> None:
    for form in FORMS.values():
        assert native(**upcast(drawn(rope_case(**form)))).dtype is torch.float64


@pytest.mark.parametrize("layout", list(Layout))
def test_packed_pairs_are_the_same_pairs(layout: Layout) -> None:
    for form in ("wan", "flux", "complex", "wan, positions of each batch"):
        args = drawn(rope_case(layout=layout, **FORMS[form]), dtype=torch.bfloat16)
        if layout is Layout.CHANNELS_LAST:
            continue
        assert (native(**args).float() - rewrite.packed_pairs.run(**args).float()).abs().max() <= 2**-6


# --- inputs -----------------------------------------------------------------------------------------------------


def test_angles_are_drawn_for_every_row_and_batch() -> None:
    args = drawn(rope_case(positions="per_batch"))
    torch.testing.assert_close(args["cos"].square() + args["sin"].square(), torch.ones_like(args["cos"]))
    assert args["cos"].flatten().unique().numel() == args["cos"].numel()
    assert (args["cos"] < 0).any()
    assert (args["sin"] < 0).any()


def test_full_width_tables_repeat_values_where_models_do() -> None:
    flux = drawn(rope_case(**FORMS["flux"]))
    assert flux["cos"][..., 0::2].equal(flux["cos"][..., 1::2])
    qwen3 = drawn(rope_case(**FORMS["qwen3"]))
    assert qwen3["sin"][..., :8].equal(qwen3["sin"][..., 8:])
    wan = drawn(rope_case(**FORMS["wan of diffusers"]))
    assert not (wan["cos"][..., 0::2] == wan["cos"][..., 1::2]).any()


def test_tables_do_not_follow_the_activations() -> None:
    draws = (SeededDraw(0, torch.float32, torch.device("cpu"), variant) for variant in (Variant.NORMAL, Variant.LARGE))
    plain, large = (OP.inputs(rope_case(), draw) for draw in draws)
    assert plain["cos"].equal(large["cos"])
    assert large["x"].equal(64 * plain["x"])


def test_sliced_is_a_packed_qkv() -> None:
    x = drawn(rope_case(B=2, S=6, H=4, D=16, layout=Layout.SLICED))["x"]
    assert x.stride() == (6 * 3 * 64, 3 * 64, 16, 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pairs": "quarters"}, "`pairs` is 'quarters', choose one of interleaved, halves"),
        ({"positions": "absolute"}, "choose one of shared, per_batch, per_head"),
        ({"rotary_dim": 18}, "`rotary_dim` is 18; it must be even and not above D=16"),
        ({"rotary_dim": 7}, "must be even"),
        ({"form": "complex", "pairs": "halves"}, "`pairs` must be interleaved"),
        ({"form": "complex", "rotary_dim": 8}, "`rotary_dim` must be 16"),
        ({"pairs": "halves", "width": "full"}, "which halves do not have"),
        ({"heads_per_kv": 3, "contexts": ("qk",)}, "divide the H=4 heads"),
        ({"H": 6, "contexts": ("ulysses",)}, "H=6 heads do not go to 4 ranks"),
    ],
)
def test_impossible_cases(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in (OP.check(rope_case(**changes)) or "")


def test_possible_cases() -> None:
    for form in FORMS.values():
        assert OP.check(rope_case(contexts=("qk", "joint", "ulysses"), **form)) is None


def test_bytes_count_every_input_once() -> None:
    case = rope_case(dtype=Dtype.BF16, B=2, S=6, H=4, D=16, positions="per_batch", width="full", table_dtype="float32")
    args = drawn(case, dtype=torch.bfloat16)
    tables = sum(args[name].nbytes for name in ("cos", "sin"))
    assert OP.bytes_moved(case) == 2 * args["x"].nbytes + tables
    packed = rope_case(form="complex", dtype=Dtype.BF16)
    assert OP.bytes_moved(packed) - 2 * packed.numel * 2 == drawn(packed)["cos"].nbytes
    for context in ("qk", "joint"):
        args = drawn(case.model_copy(update={"params": case.params | {"heads_per_kv": 2}}), context, torch.bfloat16)
        activations = sum(args[name].nbytes for name in ("x", "q", "k", "text") if name in args)
        tables = sum(args[name].nbytes for name in ("cos", "sin", "cos_text", "sin_text") if name in args)
        given = case.model_copy(update={"params": case.params | {"heads_per_kv": 2}})
        assert OP.context(context).bytes_moved(given) == 2 * activations + tables


# --- contexts ---------------------------------------------------------------------------------------------------


def test_contexts() -> None:
    case = rope_case(B=2, S=6, H=4, D=16, heads_per_kv=2)
    args = drawn(case, "qk")
    q, k = OP.context("qk").compose(native)(**args)
    same = {name: args[name] for name in ("cos", "sin", "form", "pairs", "width")}
    assert args["k"].shape == (2, 6, 2, 16)
    assert q.equal(native(x=args["q"], **same))
    assert k.equal(native(x=args["k"], **same))
    packed = OP.context("ulysses").compose(native)(**drawn(case))
    y = native(**drawn(case))
    assert packed.shape == (4, 6, 2, 1, 16)
    assert packed[3, 5, 1, 0].equal(y[1, 5, 3])
    args = drawn(case, "joint")
    joined = OP.context("joint").compose(native)(**args)
    assert joined[:, 6:].equal(native(**drawn(case)))
    assert joined[:, :6].equal(native(args["text"], args["cos_text"], args["sin_text"], *list(same.values())[2:]))


# --- our kernel -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.rope_rehearsal", interpret=True)


@pytest.mark.parametrize(("where", "count"), [("alone", 28), ("in_context", 19)])
def test_the_kernel_agrees_with_the_fp64_oracle(rehearsal: dict[str, Any], where: str, count: int) -> None:
    assert len(rehearsal[where]) == count
    for name, seen in rehearsal[where].items():
        assert seen["error"] < 1e-6, (name, seen)
        assert seen["contiguous"], name
        assert seen["input_kept"], name


def test_every_tile_covers_the_tensor(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["plans"]) == 21
    assert max(rehearsal["plans"].values()) < 1e-6


def test_products_round_as_in_aten(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["rounding"] == {"fp32": 0, "fp16": 0, "fp16, wide tables": 0}


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["far apart"] == {"differ": 0}


def test_opcheck_accepts_the_fakes(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 20
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_the_kernel_compiles_for_hopper_without_spills() -> None:
    """At real shapes: 128-bit global loads, no local memory; needs ptxas (it comes with Triton), no GPU."""
    for name, kernel in interpreted.run("tests.candidates.hopper_rope_wan", interpret=False).items():
        assert kernel == {"local_bytes": 0, "load_bits": 128}, name


def test_tables_of_another_shape_are_refused() -> None:
    x = torch.randn(2, 6, 4, 16)
    with pytest.raises(ValueError, match=r"the table is \(5, 8\), x wants \(6, 8\)"):
        rope(x, torch.ones(5, 8), torch.ones(5, 8), "pair", "interleaved", "half")
    with pytest.raises(ValueError, match="turn 32 elements of a head, x has 16"):
        rope(x, torch.ones(6, 16), torch.ones(6, 16), "pair", "interleaved", "half")


@given(
    batch=st.integers(1, 64), tokens=st.integers(1, 10**6), heads=st.integers(1, 64), loaded=st.integers(2, 4096),
    share=st.sampled_from([0.0, 1.0, 4.0]),
)  # fmt: skip
def test_tiles_are_of_bounded_size(batch: int, tokens: int, heads: int, loaded: int, share: float) -> None:
    plan = make_plan(batch, tokens, heads, loaded, share)
    for size in (plan.tokens, plan.warps):
        assert size & (size - 1) == 0
        assert size >= 1
    assert heads % plan.heads == 0
    assert plan.heads <= 6
    assert plan.tokens < 2 * tokens
    assert plan.tokens * loaded <= max(1024, loaded)


@pytest.mark.parametrize(
    ("shape", "loaded", "share", "plan"),
    [
        ((1, 32760, 12), 128, 1.0, Plan(8, 1, 4)),
        ((1, 32760, 40), 128, 1.0, Plan(8, 1, 4)),
        ((1, 32760, 12), 128, 4.0, Plan(8, 1, 4)),
        ((1, 75600, 40), 128, 4.0, Plan(8, 5, 4)),
        ((1, 4608, 48), 128, 4.0, Plan(8, 6, 4)),
        ((1, 4608, 37), 128, 4.0, Plan(8, 1, 4)),
        ((1, 4224, 30), 128, 2.0, Plan(8, 1, 4)),
        ((1, 2048, 32), 64, 1.0, Plan(16, 1, 4)),
        ((1, 1, 32), 64, 1.0, Plan(1, 1, 1)),
        ((1, 6144, 1), 2048, 4.0, Plan(1, 1, 8)),
    ],
)
def test_tiles_of_real_shapes(shape: tuple[int, int, int], loaded: int, share: float, plan: Plan) -> None:
    assert make_plan(*shape, loaded, share) == plan


def test_heads_of_q_and_k_are_divided_alike() -> None:
    assert make_plan(1, 4608, 36, 128, 4.0, divides=4).heads == 4


# --- on a GPU ---------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("tables", ["bfloat16", "float32"])
@pytest.mark.parametrize("heads", [12, 40])
def test_gpu_is_native_to_the_last_bit(form: dict[str, Any], tables: str, heads: int) -> None:
    """But for the complex form: compilers fuse aten's complex product as they like."""
    if form["form"] == "complex" and tables == "bfloat16":
        pytest.skip("complex tables are complex64")
    case = rope_case(B=2, S=333, H=heads, D=128, dtype=Dtype.BF16, **(form | {"table_dtype": tables}))
    args = drawn(case, dtype=torch.bfloat16, device="cuda")
    y, right = rope(**args), native(**args)
    if form["form"] == "complex":
        assert (y.float() - right.float()).abs().max() <= 2**-5
        assert (y == right).double().mean() > 0.999
    else:
        assert y.equal(right)
    assert y.equal(rope(**args))


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    x = torch.randn((6, 75600, 40, 128), device="cuda", dtype=torch.bfloat16)
    cos, sin = torch.randn((2, 75600, 64), device="cuda", dtype=torch.bfloat16)
    y = rope(x, cos, sin, "pair", "interleaved", "half")
    last = native(x[-1:, -9:], cos[-9:], sin[-9:], "pair", "interleaved", "half")
    assert y[-1:, -9:].equal(last)
