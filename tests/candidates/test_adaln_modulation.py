"""adaLN modulation: the declaration, our kernel in Triton's interpreter, adapters on stand-ins for upstream."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from candidates._providers import sglang as sglang_provider
from candidates._providers import vllm_omni as vllm_omni_provider
from candidates.adaln_modulation import aten, fused, sglang, vllm_omni
from candidates.adaln_modulation.launch import Table, describe, make_plan, modulate
from candidates.adaln_modulation.op import OP, Form, Per, native
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device
from harness.schema.case import Case, Confidence, Dtype, Layout
from tests.candidates import interpreted

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
CPU = Device("cpu", "CPU", (0, 0), 2, 2**25, 2**34)
BSD = {"B": 2, "S": 12, "D": 32}
L = Layout


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.adaln_modulation_rehearsal", interpret=True)


def case(
    form: str = "scale_shift", per: str = "batch", shift: str = "", dims: dict[str, int] | None = None,
    layout: Layout = L.CONTIGUOUS, dtype: Dtype = Dtype.FP32, table: str = "float32", **more: Any,
) -> Case:  # fmt: skip
    dims = dims or ({"T": 12, "D": 32} if per == "index" else BSD)
    shift_per = (shift or per) if form == "scale_shift" else "none"
    constant = 1 if form == "scale_shift" else 0
    params = {"form": form, "scale_per": per, "shift_per": shift_per, "rows": 3, "chunks": 2, "table": table,
              "scale_constant": constant, "upcast": False, **more}  # fmt: skip
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params=params,
        dtype=dtype,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=dims,
    )


def drawn(one: Case, seed: int = 3, context: str | None = None) -> dict[str, Any]:
    source = OP.context(context) if context else OP
    return source.inputs(one, SeededDraw(seed, getattr(torch, one.dtype), torch.device("cpu")))


# Our kernel


def test_kernel_is_eager_pytorch_bit_for_bit(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["numerics"]) == 116
    for name, seen in rehearsal["numerics"].items():
        assert seen["equal"], name
        assert seen["dtype"], name
        assert seen["input_kept"], name
    assert rehearsal["numerics"]["transposed"]["strides"] == [48, 1, 6]
    assert rehearsal["numerics"]["sliced"]["strides"] == [48, 8, 1]


def test_rounding_in_the_interpreter_is_pytorchs(rehearsal: dict[str, Any]) -> None:
    assert rehearsal["rounding"]


def test_opcheck_accepts_the_fake_and_nothing_is_nothing(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 12
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}
    assert rehearsal["empty"] == [0, 4, 8]


def test_kernel_compiles_for_hopper_without_spills() -> None:
    """At real shapes: no local memory, loads of 16 bytes, but of 8 where 512 columns of bf16 meet 128 threads."""
    kernels = interpreted.run("tests.candidates.hopper_adaln_modulation", interpret=False)
    assert len(kernels) == 7
    for name, kernel in kernels.items():
        assert kernel == {"local_bytes": 0, "load_bits": 64 if "2240" in name else 128}, name


@pytest.mark.parametrize(
    ("shape", "index", "expected"),
    [
        ((2, 32), None, Table(1, batch=32)),
        ((1, 32), None, Table(1)),
        ((2, 1, 32), None, Table(1, batch=32)),
        ((2, 3, 1, 32), None, Table(1, batch=96, group=32)),
        ((2, 12, 32), None, Table(2, batch=384, token=32)),
    ],
)
def test_tables_are_told_apart_by_shape(shape: tuple[int, ...], index: None, expected: Table) -> None:
    assert describe(torch.empty(shape), torch.empty(2, 12, 32), index) == expected


def test_a_table_by_index() -> None:
    x, index = torch.empty(12, 32), torch.zeros(12, dtype=torch.int64)
    assert describe(torch.empty(5, 64)[:, :32], x, index) == Table(3, token=64)
    assert describe(None, x, index) == Table(0)


@pytest.mark.parametrize("shape", [(3, 32), (2, 5, 32), (2, 5, 1, 32), (2, 1, 31), (2, 3, 2, 32)])
def test_tables_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not fit x of shape"):
        modulate(torch.randn(2, 12, 32), torch.randn(shape), None, None, None, 1, False)


def test_tables_that_do_not_fit_each_other() -> None:
    x = torch.randn(2, 12, 32)
    with pytest.raises(ValueError, match="3 and 4 frames"):
        modulate(x, torch.randn(2, 3, 1, 32), torch.randn(2, 4, 1, 32), None, None, 1, False)
    with pytest.raises(TypeError, match=r"the shift torch\.bfloat16"):
        modulate(x, torch.randn(2, 32), torch.randn(2, 32).bfloat16(), None, None, 1, False)
    with pytest.raises(TypeError, match=r"the residual is torch\.bfloat16"):
        modulate(x, torch.randn(2, 32), None, x.bfloat16(), None, 0, False)


@given(length=st.integers(1, 10**5), width=st.integers(1, 8192))
def test_tiles_fit_their_groups(length: int, width: int) -> None:
    plan = make_plan(length, width)
    assert 1 <= plan.rows <= length
    assert plan.columns & (plan.columns - 1) == 0
    assert plan.rows * plan.columns <= 1024
    assert plan.columns < 2 * width
    assert plan.warps in (1, 2, 4)


@pytest.mark.parametrize(
    ("width", "tile"), [(1536, (2, 512)), (3072, (1, 1024)), (5120, (1, 1024)), (2240, (2, 512)), (40, (8, 64))]
)
def test_tiles_of_real_widths(width: int, tile: tuple[int, int]) -> None:
    plan = make_plan(4096, width)
    assert (plan.rows, plan.columns) == tile


# Declaration


@pytest.mark.parametrize("per", [per for per in Per if per is not Per.NONE])
@pytest.mark.parametrize("form", list(Form))
def test_native_in_fp64_is_the_formula_per_token(form: Form, per: Per) -> None:
    args = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
            for k, v in drawn(case(form, per)).items()}  # fmt: skip
    x = args["x"]
    batches = x.reshape(-1, 12, 32)

    def row(table: Tensor, b: int, s: int) -> Tensor:
        if per is Per.INDEX:
            return table[args["index"][s]]
        return {Per.BATCH_2D: lambda: table[b], Per.BATCH: lambda: table[b, 0], Per.FRAME: lambda: table[b, s // 4, 0],
                Per.TOKEN: lambda: table[b, s]}[per]()  # fmt: skip

    y = native(**args).reshape(batches.shape)
    for b in range(len(batches)):
        for s in range(12):
            right = batches[b, s] * (args["scale_constant"] + row(args["scale"], b, s))
            if form is Form.SCALE_SHIFT:
                right = right + row(args["shift"], b, s)
            if form is Form.GATE:
                right = right + args["residual"].reshape(batches.shape)[b, s]
            torch.testing.assert_close(y[b, s], right, rtol=1e-14, atol=1e-14)


def test_native_rounds_as_the_tables_say() -> None:
    x, scale, shift = torch.randn(3, 2, 4, 64).bfloat16()
    stepwise = x * (1 + scale) + shift
    once = (x.float() * (1 + scale.float()) + shift.float()).bfloat16()
    assert torch.equal(native(x, scale, shift, None, None, 1, False), stepwise)
    assert torch.equal(native(x, scale, shift, None, None, 1, True), once)
    assert torch.equal(native(x, scale.float(), shift.float(), None, None, 1, False), once)
    assert not torch.equal(once, stepwise)


def test_tables_are_chunks_and_differ() -> None:
    args = drawn(case(per="token", chunks=6))
    assert args["scale"].stride() == (12 * 6 * 32, 6 * 32, 1)
    assert not torch.equal(args["scale"], args["shift"])
    frame = drawn(case(per="frame", shift="token"))
    assert frame["scale"].shape == (2, 3, 1, 32)
    assert frame["shift"].shape == (2, 12, 32)
    assert len(set(drawn(case(per="index"))["index"].tolist())) > 1


def test_bytes() -> None:
    table, activation = 32 * 4, 2 * 12 * 32 * 4
    assert OP.bytes_moved(case()) == 2 * activation + 2 * 2 * table
    assert OP.bytes_moved(case("gate", "frame")) == 3 * activation + 6 * table
    assert OP.bytes_moved(case(per="frame", shift="token")) == 2 * activation + 6 * table + 24 * table
    assert OP.bytes_moved(case(per="index")) == activation + 2 * 3 * table + 8 * 12
    assert OP.context("gate_layernorm").bytes_moved(case("gate")) == 4 * activation + 3 * 2 * table


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (case(form="swish"), "form is 'swish'; write one of scale_shift, scale, gate"),
        (case(per="row"), "scale_per is 'row'"),
        (case(table="int8"), "table is 'int8'"),
        (case(shift="none"), "contradict each other"),
        (case("scale", shift_per="batch"), "contradict each other"),
        (case("gate", scale_constant=1), "a gate has scale_constant 0"),
        (case(per="index", dims=BSD), "goes with tables per index"),
        (case(shift="index"), "goes with tables per index"),
        (case(per="frame", rows=5), "S=12 tokens do not divide into rows=5 frames"),
        (case().model_copy(update={"contexts": ("gate_layernorm",)}), "gate_layernorm is not for form scale_shift"),
        (case(per="none"), "there is always a scale"),
    ],
)
def test_check_names_what_is_impossible(one: Case, sentence: str) -> None:
    assert sentence in (OP.check(one) or "")


def test_check_takes_what_is_possible() -> None:
    assert all(OP.check(one) is None for one in (case(), case("gate", "token"), case("scale"), case(per="index")))


def test_contexts() -> None:
    args = drawn(case())
    context = OP.context("layernorm")
    normed = F.layer_norm(args["x"], (32,), eps=1e-6)
    torch.testing.assert_close(context.compose(native)(**args), normed * (1 + args["scale"]) + args["shift"])
    args = drawn(case("gate"), context="gate_layernorm")
    y, h = OP.context("gate_layernorm").compose(native)(**args)
    assert torch.equal(h, args["residual"] + args["x"] * args["scale"])
    normed = F.layer_norm(h, (32,), eps=1e-6)
    torch.testing.assert_close(y, normed * (1 + args["next_scale"]) + args["next_shift"])


# Adapters, upstream's functions replaced by PyTorch that insists on their terms


def scale_shift(x: Tensor, scale: Tensor, shift: Tensor, constant: float) -> Tensor:
    assert x.ndim == 3
    assert x.is_contiguous()
    if scale.ndim == 4:
        assert shift.numel() == x.numel()
        shift = shift.reshape(-1, x.shape[2]).view(x.shape)
        scale = scale.squeeze(2).repeat_interleave(x.shape[1] // scale.shape[1], 1)
    spread = [t[:, None] if t.ndim == 2 else t for t in (scale, shift)]
    return x * (constant + spread[0].expand(x.shape)) + spread[1].expand(x.shape)


def modulate_jit(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    for table in (scale, shift):
        assert table.shape == (x.shape[0], x.shape[2])
        assert table.is_contiguous()
        assert table.dtype is x.dtype
    assert x.is_contiguous()
    return x * (1 + scale[:, None]) + shift[:, None]


def gate_jit(residual: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    assert residual.is_contiguous()
    assert update.is_contiguous()
    assert gate.dtype is residual.dtype
    assert gate.shape == residual.shape or gate.shape[1:] == (1, residual.shape[2])
    assert gate.is_contiguous() or gate.shape[1] == 1
    return residual + update * gate


def gate_fp32(residual: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    assert gate.ndim == 3
    assert gate.shape[1:] == (1, residual.shape[2])
    return (residual.float() + gate.float() * update.float()).to(residual.dtype)


def indexed(x: Tensor, shift: Tensor, scale: Tensor, index: Tensor) -> Tensor:
    assert x.ndim == 2
    assert scale.stride(1) == shift.stride(1) == 1
    return x.copy_(x * (1 + scale[index]) + shift[index])


def indexed_gate(x: Tensor, gate: Tensor, other: Tensor, index: Tensor) -> Tensor:
    return x + gate[index] * other


def layernorm_modulate(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    assert scale.shape == shift.shape == (x.shape[0], x.shape[2])
    assert scale.stride() == shift.stride()
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale[:, None]) + shift[:, None]


MODULATE = "ops.diffusion.modulate"
SGLANG: dict[str, Callable[..., Any]] = {
    f"{MODULATE}.scale_shift_triton.fuse_scale_shift_kernel": scale_shift,
    f"{MODULATE}.modulate_scale_shift_jit.modulate_scale_shift_cuda": modulate_jit,
    "kda_kernels.residual_gate_add_jit.residual_gate_add_cuda": gate_jit,
    f"{MODULATE}.residual_gate_fp32.residual_gate_fp32": gate_fp32,
    f"{MODULATE}.indexed_modulation_triton.indexed_scale_shift_fp32_": indexed,
    f"{MODULATE}.indexed_modulation_triton.indexed_gate_fp32": indexed_gate,
    "kda_kernels.layernorm_modulate_triton.fused_layernorm_modulate_raw": layernorm_modulate,
}
VLLM_OMNI: dict[str, Callable[..., Any]] = {
    "indexed_modulation.indexed_scale_shift_": indexed,
    "indexed_modulation.indexed_gate": indexed_gate,
}


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_provider, "function", lambda module, name: SGLANG[f"{module}.{name}"])
    monkeypatch.setattr(vllm_omni_provider, "function", lambda module, name: VLLM_OMNI[f"{module}.{name}"])


ADAPTERS = [value for module in (aten, sglang, vllm_omni) for value in vars(module).values()
            if isinstance(value, Candidate)]  # fmt: skip
FUSED = [value for value in vars(fused).values() if isinstance(value, Candidate)]
BY_ID = {adapter.id: adapter for adapter in ADAPTERS + FUSED}
CASES = [case(form, per, layout=layout) for form in Form for per in Per if per is not Per.NONE
         for layout in (L.CONTIGUOUS, L.SLICED)]  # fmt: skip
CASES += [case(per="frame", shift="token"), case(per="batch", shift="frame"), case(per="frame", shift="batch")]
ADMITTED = [
    (adapter, one)
    for adapter in ADAPTERS
    for one in CASES
    for tables in ("bfloat16", "float32")
    if adapter.guard(one.model_copy(update={"dtype": Dtype.BF16, "params": one.params | {"table": tables}}), H200)
    is None
]


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(("adapter", "one"), ADMITTED, ids=lambda value: getattr(value, "id", None))
def test_every_admitted_case_is_computed_right(adapter: Candidate, one: Case) -> None:
    args = drawn(one, context=adapter.context)
    expected = (OP.context(adapter.context).compose(native) if adapter.context else native)(**args)
    before = {name: value.clone() for name, value in args.items() if isinstance(value, Tensor)}
    out = adapter.run(**args)
    for name in before.keys() - set(adapter.mutates):
        assert torch.equal(args[name], before[name]), name
    if adapter.returns:
        assert out is None
        out = args[adapter.returns[0]]
    torch.testing.assert_close(out, expected)
    assert out.stride() == (adapter.fake or OP.fake)(**args).stride()


def test_every_adapter_is_admitted_to_something() -> None:
    assert {adapter.id for adapter, _ in ADMITTED} == {adapter.id for adapter in ADAPTERS}


@pytest.mark.parametrize("adapter", BY_ID.values(), ids=lambda value: value.id)
def test_the_signature_makes_a_custom_op(adapter: Candidate) -> None:
    schema = torch.library.infer_schema(adapter.run, mutates_args=adapter.mutates)
    assert schema.endswith("-> ()") == bool(adapter.mutates)


BF16: dict[str, Any] = {"dtype": Dtype.BF16, "table": "bfloat16"}
REFUSED = [
    ("sglang.fuse_scale_shift", case("scale"), "computes form scale_shift or gate"),
    ("sglang.fuse_scale_shift", case(per="index"), "takes tables batch_2d, batch, frame, token"),
    ("sglang.fuse_scale_shift", case(layout=L.SLICED), "contiguous tensors only"),
    ("sglang.fuse_scale_shift", case(upcast=True), "computes in the tables' dtype"),
    ("sglang.fuse_scale_shift", case(dims={"B": 6, "S": 75600, "D": 5120}), "32-bit offsets"),
    ("sglang.fuse_scale_shift", case(per="token", dims={"B": 1, "S": 75600, "D": 5120}, chunks=6), "tables of"),
    ("sglang.modulate_scale_shift", case(dtype=Dtype.BF16), "takes tables of x's dtype"),
    ("sglang.modulate_scale_shift", case(per="frame", **BF16), "takes tables batch_2d, batch"),
    ("sglang.modulate_scale_shift", case(dims={"B": 1, "S": 2, "D": 12}, **BF16), "multiples of 8"),
    ("sglang.modulate_scale_shift", case(scale_constant=0, **BF16), "adds 1 to the scale"),
    ("sglang.residual_gate_add", case("gate", upcast=True, **BF16), "computes in the tables' dtype"),
    ("sglang.residual_gate_fp32", case("gate", **BF16), "rounds after each step"),
    ("sglang.indexed_scale_shift", case(**BF16), "takes tables index"),
    ("sglang.fused_layernorm_modulate", case(dims={"B": 1, "S": 2, "D": 8196}, **BF16), "multiples of 4 to 8192"),
    ("vllm_omni.indexed_gate", case(per="index"), "computes form gate"),
    ("inhouse.triton_layernorm_modulation", case(per="index"), "takes tables batch_2d, batch, frame, token"),
    ("inhouse.triton_gate_layernorm_modulation", case(), "computes form gate, the case is scale_shift"),
]  # fmt: skip


@pytest.mark.parametrize(("adapter_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(adapter_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[adapter_id].guard(one, H200) or "")


def test_aten_needs_a_gpu() -> None:
    assert BY_ID["torch.addcmul"].guard(case(**BF16), CPU) == "needs an NVIDIA GPU"


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("table", ["bfloat16", "float32"])
@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("per", [per for per in Per if per is not Per.NONE])
def test_gpu_is_eager_pytorch_bit_for_bit(form: Form, per: Per, table: str) -> None:
    dims = {"T": 301, "D": 2240} if per is Per.INDEX else {"B": 2, "S": 300, "D": 3072}
    one = case(form, per, dims=dims, dtype=Dtype.BF16, table=table)
    args = OP.inputs(one, SeededDraw(1, torch.bfloat16, torch.device("cuda")))
    assert torch.equal(modulate(**args), native(**args))
    if table == "bfloat16":
        args["upcast"] = True
        assert torch.equal(modulate(**args), native(**args))


@pytest.mark.gpu
def test_gpu_beyond_int32() -> None:
    x = torch.randn((6, 75600, 5120), device="cuda", dtype=torch.bfloat16)
    scale, shift = torch.randn((2, 6, 1, 5120), device="cuda")
    y = modulate(x, scale, shift, None, None, 1, False)[-1, -9:]
    assert torch.equal(y, native(x[-1:, -9:], scale[-1:], shift[-1:], None, None, 1, False)[0])
