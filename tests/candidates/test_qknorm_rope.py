"""QK-norm + RoPE: the declaration, the plans, the rewrite, and our kernels in Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from candidates.qknorm_rope import inhouse
from candidates.qknorm_rope.launch import make_group, make_rows, qknorm_rope
from candidates.qknorm_rope.op import OP, native, text_tokens
from candidates.qknorm_rope.rewrite import one_pass
from harness.measure.inputs import SeededDraw
from harness.op import Args
from harness.schema.case import Case, Layout
from tests.candidates import interpreted
from tests.candidates.qknorm_rope_cases import case


def args_of(one: Case, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Args:
    return OP.inputs(one, SeededDraw(4, dtype, torch.device(device)))


# --- native against arithmetic on single numbers ------------------------------------------------------------------


def by_hand(args: Args, name: str, b: int, s: int, h: int) -> list[float]:
    """One head of native's output in Python's floats: the norm, then every element by its own index."""
    x = args[name].double()
    head_dim = x.shape[-1]
    over = x[b, s] if args["across_heads"] else x[b, s, h]
    scale = 1 / math.sqrt(over.square().mean().item() + args["eps"])
    weight = (
        args[f"{name}_weight"].double()[h * head_dim :] if args["across_heads"] else args[f"{name}_weight"].double()
    )
    normed = [x[b, s, h, i].item() * scale * weight[i].item() for i in range(head_dim)]
    cos, sin = (args[t][b, s] if args[t].ndim == 3 else args[t][s] for t in ("cos", "sin"))
    half_table = args["table"] == "half"
    rotary = len(cos) * (2 if half_table else 1)
    out = list(normed)
    for i in range(rotary):
        if args["pairs"] == "interleaved":
            partner, sign, entry = i ^ 1, (-1 if i % 2 == 0 else 1), i // 2
        else:
            partner, sign, entry = (i + rotary // 2) % rotary, (-1 if i < rotary // 2 else 1), i % (rotary // 2)
        entry = entry if half_table else i
        out[i] = normed[i] * cos[entry].item() + sign * normed[partner] * sin[entry].item()
    return out


CONVENTIONS = [
    case(),
    case(table="full", per_batch=True),
    case(table="repeated", rotary_dim=8, across_heads=True),
    case(pairs="neox", H=4, queries_per_kv=2, rotary_dim=12),
    case(pairs="neox", table="full", across_heads=True, per_batch=True),
    case(pairs="neox", table="repeated", layout=Layout.SLICED, queries_per_kv=4),
]


@pytest.mark.parametrize("one", CONVENTIONS)
def test_native_is_what_the_conventions_say(one: Case) -> None:
    args = args_of(one)
    for name, output in zip("qk", native(**args), strict=True):
        for b, s, h in ((0, 0, 0), (1, 3, output.shape[2] - 1)):
            wanted = torch.tensor(by_hand(args, name, b, s, h), dtype=torch.float32)
            torch.testing.assert_close(output[b, s, h], wanted, rtol=1e-5, atol=1e-5)


def test_rounding_is_where_it_is_said() -> None:
    """At the norm's end it is nn.RMSNorm's; before the weight it is that of transformers' classes."""
    args = args_of(case(table_dtype="bfloat16"), torch.bfloat16)
    still = args | {"cos": torch.ones_like(args["cos"]), "sin": torch.zeros_like(args["sin"])}
    q, weight = args["q"], args["q_weight"]
    end = torch.nn.functional.rms_norm(q, (16,), weight, 1e-6)
    assert torch.equal(native(**(still | {"rounding": "norm"}))[0], end)
    inner = (q.float() * torch.rsqrt(q.float().square().mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert torch.equal(native(**(still | {"rounding": "before_weight"}))[0], weight * inner)
    assert not torch.equal(weight * inner, end)
    exact = native(**{n: v.double() if isinstance(v, Tensor) else v for n, v in args.items()})[0]
    errors = [
        (native(**(args | {"rounding": rounding}))[0] - exact).square().mean()
        for rounding in ("none", "norm", "before_weight")
    ]
    assert errors == sorted(errors)


def test_fp32_tables_turn_in_fp32() -> None:
    args = args_of(case(), torch.bfloat16)
    first, second = (
        torch.nn.functional.rms_norm(args["q"], (16,), args["q_weight"], 1e-6).float().unflatten(-1, (8, 2)).unbind(-1)
    )
    cos, sin = args["cos"][:, None], args["sin"][:, None]
    wanted = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2).bfloat16()
    assert torch.equal(native(**args)[0], wanted)


# --- inputs -------------------------------------------------------------------------------------------------------


def test_sliced_is_one_packed_qkv() -> None:
    args = args_of(case(H=8, queries_per_kv=4, layout=Layout.SLICED))
    q, k = args["q"], args["k"]
    assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    assert q.stride() == k.stride() == (5 * 192, 192, 16, 1)
    assert k.storage_offset() == 128
    assert q.untyped_storage().nbytes() == 2 * 5 * 192 * 4


@pytest.mark.parametrize("pairs", ["interleaved", "neox"])
def test_a_repeated_table_has_each_value_at_both_elements_of_a_pair(pairs: str) -> None:
    cos = args_of(case(pairs=pairs, table="repeated"))["cos"]
    partner = cos.unflatten(-1, (8, 2) if pairs == "interleaved" else (2, 8)).flip(-1 if pairs == "interleaved" else -2)
    assert torch.equal(cos, partner.flatten(-2))
    full = args_of(case(pairs=pairs, table="full"))["cos"]
    assert len(full.unique()) == full.numel()


def test_batches_differ() -> None:
    args = args_of(case(per_batch=True))
    for name in ("q", "k", "cos", "sin"):
        assert not torch.equal(args[name][0], args[name][1]), name


def test_bytes() -> None:
    activations, weights = 2 * 2 * 5 * 8 * 16 * 4, 2 * 16 * 4
    assert OP.bytes_moved(case()) == activations + weights + 2 * 5 * 8 * 4
    assert OP.bytes_moved(case(table="repeated")) == activations + weights + 2 * 5 * 16 * 4
    assert OP.bytes_moved(case(table="repeated", pairs="neox")) == activations + weights + 2 * 5 * 8 * 4
    assert OP.bytes_moved(case(per_batch=True, table_dtype="bfloat16")) == activations + weights + 2 * 2 * 5 * 8 * 2
    assert OP.bytes_moved(case(across_heads=True)) == activations + 4 * weights + 2 * 5 * 8 * 4
    joint = OP.context("joint")
    assert text_tokens(case()) == 1
    assert joint.bytes_moved(case()) == OP.bytes_moved(case()) + OP.bytes_moved(case(S=1))


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"pairs": "adjacent"}, "pairs is 'adjacent', choose from interleaved, neox"),
        ({"table": "quarter"}, "table is 'quarter'"),
        ({"rounding": "always"}, "rounding is 'always'"),
        ({"table_dtype": "bf16"}, "table_dtype is 'bf16', choose from bfloat16"),
        ({"queries_per_kv": 3}, "H=4 query heads do not divide into groups of queries_per_kv=3"),
        ({"rotary_dim": 7}, "rotary_dim=7 is no even number up to D=16"),
        ({"rotary_dim": 18}, "rotary_dim=18 is no even number up to D=16"),
    ],
)
def test_impossible_cases(params: dict[str, Any], sentence: str) -> None:
    assert sentence in (OP.check(case(**params)) or "")
    assert OP.check(case()) is None


# --- contexts and rewrite -----------------------------------------------------------------------------------------


def test_contexts_compose() -> None:
    one = case(H=4, queries_per_kv=2, S=16, layout=Layout.SLICED)
    draw = SeededDraw(0, torch.float32, torch.device("cpu"))
    args = OP.context("joint").inputs(one, draw)
    q, k = OP.context("joint").compose(native)(**args)
    image = native(**{n: v for n, v in args.items() if not n.startswith("text_")})
    assert q.shape == (2, 18, 4, 16)
    assert torch.equal(q[:, 2:], image[0])
    assert torch.equal(k[:, 2:], image[1])
    text = {n.removeprefix("text_"): v for n, v in args.items() if n.startswith("text_")}
    assert torch.equal(k[:, :2], native(**(args_of(one) | text))[1])
    plain = args_of(one)
    transposed = OP.context("bhsd").compose(native)(**plain)
    assert torch.equal(transposed[1], native(**plain)[1].transpose(1, 2))
    assert transposed[1].is_contiguous()


@pytest.mark.parametrize("one", CONVENTIONS)
def test_the_rewrite_is_the_same_function(one: Case) -> None:
    args = args_of(one)
    for output, right in zip(one_pass.run(**args), native(**args), strict=True):
        torch.testing.assert_close(output, right)


# --- our kernels --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.qknorm_rope_rehearsal", interpret=True)


def test_kernels_agree_with_the_fp64_oracle(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["numerics"]) == 24
    for name, seen in rehearsal["numerics"].items():
        assert seen["error"] < 5e-6, (name, seen)
        assert seen["contiguous"], name
        assert seen["inputs_kept"], name


def test_a_program_for_all_heads_of_a_token_agrees_too(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["by_token"]) == 20
    for name, error in rehearsal["by_token"].items():
        assert error < 5e-6, name


def test_kernels_write_into_their_contexts(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["contexts"]) == 6
    for name, error in rehearsal["contexts"].items():
        assert error < 5e-6, (name, error)


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["beyond_int32"]) == 7
    for name, error in rehearsal["beyond_int32"].items():
        assert error < 4e-3, (name, error)


def test_opcheck_accepts_the_fakes(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) == 6
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_empty_input(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["empty"] == [[0, 4, 4, 16], [0, 4, 4, 16]]


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At real shapes: 128-bit global loads, no local memory; needs ptxas (it comes with Triton), no GPU."""
    kernels = interpreted.run("tests.candidates.hopper_qknorm_rope", interpret=False)
    assert len(kernels) == 6
    for name, kernel in kernels.items():
        assert kernel == {"local_bytes": 0, "load_bits": 128}, name


@given(heads=st.integers(1, 128), padded=st.sampled_from([8, 32, 64, 128, 256, 2048]))
def test_groups_waste_little_and_fit_the_registers(heads: int, padded: int) -> None:
    group = make_group(heads, padded)
    assert group & (group - 1) == 0
    assert 256 <= group * padded <= 4096
    idle = -(-heads // group) * group - heads
    smallest = max(256 // padded, 1)
    assert idle <= -(-heads // smallest) * smallest - heads, "no group leaves fewer idle than the smallest"


@pytest.mark.parametrize(("heads", "group"), [(12, 4), (40, 8), (24, 8), (32, 8), (64, 16), (14, 2), (1, 2)])
def test_groups_of_heads_of_128(heads: int, group: int) -> None:
    assert make_group(heads, 128) == group


@pytest.mark.parametrize(("rows", "taken"), [(36, 4), (128 * 48, 8), (512 * 48, 16), (4096 * 48, 16), (1, 4)], ids=str)
def test_tiles_shrink_where_there_is_little(rows: int, taken: int) -> None:
    assert make_rows(rows, 128) == taken
    assert make_rows(rows, 2048) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": torch.zeros(2, 4, 4, 16)}, "are not \\(B, S, H, D\\) and"),
        ({"cos": torch.zeros(4, 8)}, "are not two of"),
        ({"sin": torch.zeros(5, 16)}, "are not two of"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(change: Args, sentence: str) -> None:
    args = args_of(case()) | change
    del args["rounding"]
    with pytest.raises(ValueError, match=sentence):
        qknorm_rope(**args)


def test_a_norm_too_wide_for_registers_is_declined() -> None:
    wide = case(H=80, D=256, across_heads=True)
    assert inhouse.triton_qknorm_rope.guard(wide, None) == "a norm over 20480 elements is more than 16384"  # type: ignore[arg-type]
    args = args_of(wide)
    del args["rounding"]
    with pytest.raises(ValueError, match="20480 elements"):
        qknorm_rope(**args)


# --- on a GPU -----------------------------------------------------------------------------------------------------

ON_GPU = [
    case(S=37, H=24, D=128, table="repeated"),
    case(S=37, H=30, D=128, layout=Layout.SLICED, table_dtype="bfloat16", per_batch=True),
    case(S=37, H=32, D=128, queries_per_kv=8, pairs="neox", layout=Layout.SLICED, table_dtype="bfloat16"),
    case(S=37, H=14, D=128, pairs="neox", rotary_dim=96),
    case(S=5, H=12, D=128, across_heads=True, table="repeated"),
    case(S=5, H=40, D=128, across_heads=True, layout=Layout.SLICED),
    case(S=5, H=1, D=2048, table="repeated"),
    case(S=3, H=5, D=80, rotary_dim=40, pairs="neox", layout=Layout.TRANSPOSED),
]


@pytest.mark.gpu
@pytest.mark.parametrize("one", ON_GPU)
def test_gpu_agrees_and_repeats(one: Case) -> None:
    args = args_of(one, torch.bfloat16, "cuda")
    outputs = inhouse.triton_qknorm_rope.run(**args)
    oracle = native(**{n: v.double() if isinstance(v, Tensor) else v for n, v in args.items()})
    for y, right, again in zip(outputs, oracle, inhouse.triton_qknorm_rope.run(**args), strict=True):
        assert ((y - right).abs() <= 2**-8 * right.abs() + 1e-5).all()
        assert torch.equal(y, again)


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    one = case(B=1, S=524_416, H=32, D=128, queries_per_kv=8, pairs="neox")
    args = args_of(one, torch.bfloat16, "cuda")
    outputs = inhouse.triton_qknorm_rope.run(**args)
    rows = {"q", "k", "cos", "sin"}
    last = {n: (v[-9:] if v.ndim == 2 else v[:, -9:]) if n in rows else v for n, v in args.items()}
    for y, right in zip(outputs, native(**last), strict=True):
        torch.testing.assert_close(y[:, -9:], right, rtol=2**-6, atol=1e-2)
