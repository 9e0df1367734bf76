"""RMSNormVAE: the declaration, the plans, our kernels in Triton's interpreter, adapters on stand-ins for upstream."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from candidates._providers import flashinfer as flashinfer_provider
from candidates._providers import sglang as sglang_provider
from candidates._providers import vllm as vllm_provider
from candidates.rmsnorm_vae import flashinfer, sglang, vllm
from candidates.rmsnorm_vae.launch import even_step, rmsnorm_vae, rmsnorm_vae_silu_padded
from candidates.rmsnorm_vae.op import OP, native
from candidates.rmsnorm_vae.plan import RowsPlan, make_plan, make_rows_plan, split_channels
from candidates.rmsnorm_vae.rewrite import one_scale
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device
from harness.schema.case import Case, Confidence, Dtype, Layout
from tests.candidates import interpreted

CL2, CL3 = torch.channels_last, torch.channels_last_3d
H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
L = Layout


@pytest.fixture(scope="module")
def rehearsal() -> dict[str, Any]:
    return interpreted.run("tests.candidates.rmsnorm_vae_rehearsal", interpret=True)


def case(
    layout: Layout = L.CONTIGUOUS, dtype: Dtype = Dtype.FP32, upcast: bool = False, bias: bool = False,
    eps: float = 1e-6, **dims: int,
) -> Case:  # fmt: skip
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": eps, "upcast": upcast, "bias": bias},
        dtype=dtype,
        layout=layout,
        calls=1,
        step="one call",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=dims,
    )


# Our kernels


def test_kernels_agree_with_the_fp64_oracle(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["numerics"]) == 21
    for name, seen in rehearsal["numerics"].items():
        assert seen["error"] < 2e-6, (name, seen)
        assert seen["input_kept"], name


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("three pieces", [10080, 210, 70, 10, 1]),
        ("three pieces, channels-last", [10080, 1, 3360, 480, 48]),
        ("odd, channels-last", [1485, 1, 297, 33]),
        ("many rows, channels-last", [6720, 1, 3360, 672, 96]),
        ("some channels of channels-last", [6720, 1, 2240, 320, 32]),
        ("transposed", [10080, 70, 3360, 10, 1]),
        ("sliced", [5040, 105, 35, 5, 1]),
    ],
)
def test_output_has_the_strides_of_x(rehearsal: dict[str, Any], name: str, strides: list[int]) -> None:
    assert rehearsal["numerics"][name]["strides"] == strides


def test_padded_kernel_is_the_composed_native(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["padded"]) == 11
    for name, seen in rehearsal["padded"].items():
        assert seen["error"] < 3e-6, (name, seen)
        assert seen["channels_last"], name


def test_offsets_beyond_int32(rehearsal: dict[str, Any]) -> None:
    expected = []
    for s in (2_000_000_000, 2_000_000_001):
        frame, rest = divmod(s, 1 << 22)
        h, w = divmod(rest, 1 << 11)
        expected.append((frame << 40) + (h << 33) + w * 5120)
    assert rehearsal["offsets"] == [*expected, 2_000_000_000 * 5120, 2_000_000_001 * 5120]


def test_opcheck_accepts_the_fakes(rehearsal: dict[str, Any]) -> None:
    assert len(rehearsal["opcheck"]) >= 16
    assert set(rehearsal["opcheck"].values()) == {"SUCCESS"}


def test_empty_and_zero_inputs(rehearsal: dict[str, Any]) -> None:
    specials = {"empty": [0, 16, 2, 4, 4], "empty padded": [0, 16, 4, 6, 6], "zeros": 0.0}
    assert rehearsal["specials"] == specials


@pytest.mark.parametrize(("shape", "sentence"), [((1, 4), "2 dims"), ((1, 5000, 1, 2), "C=5000")])
def test_what_the_kernels_cannot_hold_is_an_error(shape: tuple[int, ...], sentence: str) -> None:
    x = torch.randn(shape)
    with pytest.raises(ValueError, match=sentence):
        rmsnorm_vae(x, torch.ones(shape[1]), None, 1e-6)


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At real shapes: no local memory, 128-bit loads, but for rows in a border, which are aligned where C is last."""
    kernels = interpreted.run("tests.candidates.hopper_rmsnorm_vae", interpret=False)
    assert len(kernels) == 18
    for name, kernel in kernels.items():
        assert kernel["local_bytes"] == 0, name
        if not name.endswith("padded"):
            assert kernel["load_bits"] == 128, name


# Plans


@given(
    channels=st.integers(1, 4096), images=st.integers(1, 5), positions=st.integers(1, 10**7), sms=st.integers(1, 200)
)
def test_a_tile_holds_all_channels(channels: int, images: int, positions: int, sms: int) -> None:
    plan = make_plan(channels, images, positions, sms)
    assert channels <= plan.pieces * plan.piece < 2 * channels
    for size in (plan.piece, plan.positions, plan.warps):
        assert math.log2(size).is_integer()
    assert plan.pieces * plan.piece * plan.positions <= 64 * 32 * plan.warps


@given(channels=st.integers(1, 4096))
def test_rows_of_a_program_hold_all_channels(channels: int) -> None:
    plan = make_rows_plan(channels)
    assert channels <= plan.pieces * plan.piece < 2 * channels
    for size in (plan.piece, plan.rows, plan.warps):
        assert math.log2(size).is_integer()
    assert 1 <= plan.groups <= 6
    assert plan.pieces * plan.piece * plan.rows <= 64 * 32 * plan.warps


def test_rows_plans_of_shapes_that_were_measured() -> None:
    assert make_rows_plan(96) == RowsPlan(pieces=3, piece=32, rows=8, groups=2, warps=1)
    assert make_rows_plan(160) == RowsPlan(pieces=5, piece=32, rows=8, groups=1, warps=1)
    assert make_rows_plan(192) == RowsPlan(pieces=3, piece=64, rows=4, groups=1, warps=1)
    assert make_rows_plan(384) == RowsPlan(pieces=3, piece=128, rows=2, groups=1, warps=1)


@pytest.mark.parametrize(
    ("channels", "pieces", "piece"), [(96, 3, 32), (192, 3, 64), (384, 3, 128), (160, 5, 32), (256, 1, 256)]
)
def test_channels_split_without_idle_lanes(channels: int, pieces: int, piece: int) -> None:
    assert split_channels(channels) == (pieces, piece)


def test_even_step_of_positions() -> None:
    assert even_step((1, 8, 2, 3, 4), (96, 12, 12, 4, 1)) == 1
    assert even_step((1, 8, 2, 3, 4), (192, 1, 96, 32, 8)) == 8
    assert even_step((1, 8, 2, 3, 4), (288, 36, 36, 12, 1)) is None
    assert even_step((3, 8, 1, 1, 1), (8, 1, 0, 0, 0)) == 1


# Declaration


@pytest.mark.parametrize("with_bias", [False, True])
def test_native_in_fp64(with_bias: bool) -> None:
    x = torch.randn(2, 6, 2, 3, 5, dtype=torch.float64)
    gamma, bias = torch.randn(2, 6, 1, 1, 1, dtype=torch.float64)
    expected = x / (x**2).mean(1, keepdim=True).sqrt() * gamma + (bias if with_bias else 0)
    for upcast in (False, True):
        y = native(x, gamma, bias if with_bias else None, 1e-12, upcast)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    tiny = native(x * 1e-9, gamma, None, 1e-6, False)
    torch.testing.assert_close(tiny, x * 1e-3 * math.sqrt(6) * gamma)


def test_native_rounds_after_each_step_and_upcast_rounds_less() -> None:
    x = torch.randn(1, 96, 4, 8).bfloat16()
    gamma = (1 + 0.2 * torch.randn(96, 1, 1)).bfloat16()
    norm = torch.linalg.vector_norm(x.float(), dim=1, keepdim=True).bfloat16()
    by_hand = ((x.float() / norm.float()).bfloat16().float() * math.sqrt(96)).bfloat16() * gamma
    assert torch.equal(native(x, gamma, None, 1e-6, False), by_hand)
    wide = (F.normalize(x.float(), dim=1).bfloat16().float() * math.sqrt(96)).bfloat16() * gamma
    assert torch.equal(native(x, gamma, None, 1e-12, True), wide)
    assert not torch.equal(wide, by_hand)


@pytest.mark.parametrize("layout", [L.CONTIGUOUS, L.CHANNELS_LAST])
@pytest.mark.parametrize("context_id", ["silu_pad", "silu_cache_pad"])
def test_contexts_give_the_input_of_a_causal_convolution(context_id: str, layout: Layout) -> None:
    one = case(layout, bias=True, N=2, C=4, T=3, H=4, W=5)
    context = OP.context(context_id)
    args = context.inputs(one, SeededDraw(0, torch.float32, torch.device("cpu")))
    out = context.compose(native)(**args)
    assert out.shape == (2, 4, 5, 6, 7)
    assert out.is_contiguous(memory_format=CL3) == (layout is L.CHANNELS_LAST)
    y = native(*(args[name] for name in ("x", "gamma", "bias", "eps", "upcast")))
    torch.testing.assert_close(out[:, :, 2:, 1:-1, 1:-1], y / (1 + torch.exp(-y)))
    front = args.get("cache", torch.zeros(2, 4, 2, 4, 5))
    assert torch.equal(out[:, :, :2, 1:-1, 1:-1], front)
    out[:, :, :, 1:-1, 1:-1] = 0
    assert not out.any()
    cached = 2 * 4 * 2 * 4 * 5 if context_id == "silu_cache_pad" else 0
    assert context.bytes_moved(one) == 4 * (2 * 4 * 3 * 4 * 5 + 2 * 4 * 5 * 6 * 7 + 8 + cached)


def test_check_wants_frames_for_contexts() -> None:
    flat = case(N=1, C=4, H=4, W=4).model_copy(update={"contexts": ("silu_pad",)})
    assert "there is no T" in (OP.check(flat) or "")
    assert OP.check(case(N=1, C=4, H=4, W=4)) is None


@pytest.mark.parametrize("upcast", [False, True])
def test_rewrite_is_native(upcast: bool) -> None:
    x = torch.randn(2, 33, 3, 5).contiguous(memory_format=CL2)
    gamma, bias = torch.randn(2, 33, 1, 1)
    y = one_scale.run(x, gamma, bias, 1e-6, upcast)
    torch.testing.assert_close(y, native(x, gamma, bias, 1e-6, upcast))
    assert y.is_contiguous(memory_format=CL2)


# Adapters, upstream's functions replaced by PyTorch that insists on their terms


def rows_norm(x: Tensor, w: Tensor, bias: Tensor | None, eps: float, is_rms_norm: bool = True) -> Tensor:
    assert is_rms_norm
    assert x.ndim == 2
    assert x.is_contiguous()
    assert w.shape == (x.shape[1],)
    y = x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps) * w
    return y if bias is None else y + bias


def norm_out(x: Tensor, w: Tensor, eps: float, out: Tensor) -> None:
    out.copy_(rows_norm(x, w, None, eps))


def finish(x: Tensor, gamma: Tensor, scale: float) -> Tensor:
    assert x.is_contiguous()
    assert gamma.shape == (x.shape[1], *[1] * (x.ndim - 2))
    return F.normalize(x, dim=1) * scale * gamma


def finish_silu(x: Tensor, norm: Tensor, gamma: Tensor, scale: float) -> Tensor:
    assert norm.dtype is torch.float32
    assert norm.shape == (x.shape[0], 1, *x.shape[2:])
    assert x.is_contiguous()
    return F.silu(x / norm * scale * gamma)


def last_silu(x: Tensor, gamma: Tensor, bias: Tensor | None = None, eps: float = 1e-12) -> Tensor:
    assert x.ndim == 5
    assert x.is_contiguous(memory_format=CL3)
    return F.silu(native(x, gamma, bias, eps, False))


def cat_pad_last(y: Tensor, cache: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    assert y.stride(1) == 1
    front = padding[4] - (0 if cache is None else cache.shape[2])
    joined = y if cache is None else torch.cat([cache, y], 2)
    return F.pad(joined, (*padding[:4], front, 0)).contiguous(memory_format=CL3)


def cat_pad(y: Tensor, cache: Tensor, padding: tuple[int, ...]) -> Tensor:
    assert y.is_contiguous()
    assert cache.is_contiguous()
    return F.pad(torch.cat([cache, y], 2), (*padding[:4], padding[4] - cache.shape[2], 0))


DIFFUSION = "sglang.ops.diffusion"
UPSTREAM: dict[str, Callable[..., Any]] = {
    f"{DIFFUSION}.norm.norm_triton.rms_norm_fn": rows_norm,
    f"{DIFFUSION}.norm.norm_triton.norm_infer": rows_norm,
    f"{DIFFUSION}.norm.channel_rmsnorm_preserve_reduction.channel_rmsnorm_preserve_reduction": finish,
    f"{DIFFUSION}.norm.channel_rmsnorm_finish_silu_jit.channel_rmsnorm_finish_silu": finish_silu,
    f"{DIFFUSION}.norm.wan_rmsnorm_silu_triton.wan_rmsnorm_silu": last_silu,
    f"{DIFFUSION}.norm.channel_rmsnorm_silu_nhwc_jit.channel_rmsnorm_silu_nhwc": lambda x, gamma, scale: last_silu(
        x, gamma
    ),
    f"{DIFFUSION}.layout.wan_causal_cache_triton.cat_pad_channels_last_3d": cat_pad_last,
    "sglang.kda_kernels.causal_conv3d_cat_pad_jit.fused_causal_conv3d_cat_pad_cuda": cat_pad,
    "flashinfer.norm.rmsnorm": norm_out,
    "flashinfer.norm.fused_rmsnorm_silu": lambda x, w, eps: F.silu(rows_norm(x, w, None, eps)),
    "vllm.rms_norm": lambda out, x, w, eps: norm_out(x, w, eps, out),
}


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (sglang_provider, flashinfer_provider):
        name = provider.PROVIDER.id
        monkeypatch.setattr(provider, "function", lambda module, function, p=name: UPSTREAM[f"{p}.{module}.{function}"])
    monkeypatch.setattr(vllm_provider, "operator", lambda name: UPSTREAM[f"vllm.{name}"])


ADAPTERS = [value for module in (flashinfer, sglang, vllm) for value in vars(module).values()
            if isinstance(value, Candidate)]  # fmt: skip
BY_ID = {adapter.id: adapter for adapter in ADAPTERS}
CASES = [
    case(layout, upcast=upcast, eps=1e-12 if upcast else 1e-6, bias=bias, **dims)
    for dims in ({"N": 2, "C": 32, "H": 4, "W": 6}, {"N": 2, "C": 32, "T": 2, "H": 4, "W": 6})
    for layout in (L.CONTIGUOUS, L.CHANNELS_LAST, L.SLICED, L.TRANSPOSED)
    for upcast in (False, True)
    for bias in (False, True)
]
ADMITTED = [
    (adapter, one)
    for adapter in ADAPTERS
    for one in CASES
    if adapter.guard(one.model_copy(update={"dtype": Dtype.BF16}), H200) is None
]


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize(("adapter", "one"), ADMITTED, ids=lambda value: getattr(value, "id", None))
def test_every_admitted_case_is_computed_right(adapter: Candidate, one: Case) -> None:
    context = OP.context(adapter.context) if adapter.context else None
    args = (context or OP).inputs(one, SeededDraw(3, torch.float32, torch.device("cpu")))
    before = args["x"].clone()
    out = adapter.run(**args)
    assert torch.equal(args["x"], before)
    torch.testing.assert_close(out, (context.compose(native) if context else native)(**args))
    assert out.stride() == (adapter.fake or OP.fake)(**args).stride()


def test_every_adapter_is_admitted_to_something() -> None:
    assert {adapter.id for adapter, _ in ADMITTED} == BY_ID.keys()


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda value: value.id)
def test_the_signature_makes_a_custom_op(adapter: Candidate) -> None:
    assert torch.library.infer_schema(adapter.run, mutates_args=()).endswith("-> Tensor")


BF16 = Dtype.BF16
REFUSED = [
    ("sglang.norm_infer", case(N=1, C=8, H=2, W=2), "rows of adjacent channels and the case is contiguous"),
    ("sglang.rms_norm_fn", case(N=1, C=96, T=32, H=720, W=1280), "32-bit offsets"),
    ("sglang.channel_rmsnorm_preserve_reduction", case(N=1, C=8, H=2, W=2, dtype=BF16), "diffusers' formula alone"),
    ("sglang.channel_rmsnorm_preserve_reduction", case(N=1, C=8, H=2, W=2, upcast=True), "takes bfloat16, float16"),
    ("sglang.channel_rmsnorm_preserve_reduction",
     case(L.CHANNELS_LAST, BF16, True, eps=1e-12, N=1, C=8, H=2, W=2), "contiguous tensors only"),
    ("sglang.wan_silu_pad", case(L.CHANNELS_LAST, N=1, C=8, H=2, W=2), "pads five dims"),
    ("sglang.wan_silu_pad", case(L.CHANNELS_LAST, N=1, C=1025, T=1, H=2, W=2), "C=1025 is more than 1024"),
    ("sglang.nhwc_silu_pad", case(L.CHANNELS_LAST, BF16, N=1, C=33, T=1, H=2, W=2), "even numbers up to 2048"),
    ("sglang.nhwc_silu_pad", case(L.CHANNELS_LAST, BF16, bias=True, N=1, C=32, T=1, H=2, W=2), "takes no bias"),
    ("sglang.finish_silu_cache_pad",
     case(L.CONTIGUOUS, BF16, True, eps=1e-12, N=1, C=4, T=1, H=3, W=3), "must divide by 8"),
    ("flashinfer.rmsnorm_silu_pad", case(L.CHANNELS_LAST, BF16, N=1, C=48, T=1, H=2, W=2), "32 lanes of a warp"),
    ("flashinfer.rmsnorm", case(L.CHANNELS_LAST, N=1, C=48, H=2, W=2), "takes bfloat16, float16 only"),
    ("vllm.rms_norm", case(N=1, C=48, H=2, W=2), "rows of adjacent channels"),
]  # fmt: skip


@pytest.mark.parametrize(("adapter_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(adapter_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[adapter_id].guard(one, H200) or "")


@pytest.mark.usefixtures("upstream")
@pytest.mark.parametrize("adapter_id", [i for i in BY_ID if i.startswith(("flashinfer.", "vllm."))])
def test_a_weight_of_another_dtype_is_not_read_as_nonsense(adapter_id: str) -> None:
    adapter = BY_ID[adapter_id]
    one = case(L.CHANNELS_LAST, N=1, C=32, T=1, H=2, W=2)
    source = OP.context(adapter.context) if adapter.context else OP
    args = source.inputs(one, SeededDraw(0, torch.float32, torch.device("cpu")))
    with pytest.raises(TypeError, match=r"weight is torch\.bfloat16"):
        adapter.run(**(args | {"gamma": args["gamma"].bfloat16()}))


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(1, 96, 2, 30, 52), (2, 384, 1, 15, 16), (1, 33, 3, 17, 9), (1, 1024, 1, 30, 52), (2, 192, 2, 9, 7)]
)
@pytest.mark.parametrize("last", [False, True])
def test_gpu_agrees_and_repeats(shape: tuple[int, ...], last: bool) -> None:
    memory_format = CL3 if last else torch.contiguous_format
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=memory_format)
    cache = torch.randn((*shape[:2], 2, *shape[3:]), device="cuda", dtype=torch.bfloat16)
    gamma, bias = torch.randn((2, shape[1], 1, 1, 1), device="cuda", dtype=torch.bfloat16)
    for chosen in (None, bias):
        wide = None if chosen is None else chosen.double()
        y = rmsnorm_vae(x, gamma, chosen, 1e-6)
        oracle = native(x.double(), gamma.double(), wide, 1e-6, False)
        assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
        assert y.stride() == x.stride()
        assert torch.equal(rmsnorm_vae(x, gamma, chosen, 1e-6), y)
        padded = rmsnorm_vae_silu_padded(x, gamma, chosen, 1e-6, 2, cache)
        compose = OP.context("silu_cache_pad").compose(native)
        oracle = compose(x.double(), gamma.double(), wide, 1e-6, False, cache.double())
        assert ((padded - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()


@pytest.mark.gpu
@pytest.mark.parametrize("last", [False, True])
def test_gpu_beyond_int32(last: bool) -> None:
    shape = (1, 25, 720, 1280, 96) if last else (1, 96, 25, 720, 1280)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    x = x.movedim(-1, 1) if last else x
    gamma = torch.randn((96, 1, 1, 1), device="cuda", dtype=torch.bfloat16)
    y = rmsnorm_vae(x, gamma, None, 1e-6)[:, :, -1, -9:]
    oracle = native(x[:, :, -1, -9:].float(), gamma[:, 0].float(), None, 1e-6, False)
    assert ((y - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
    padded = rmsnorm_vae_silu_padded(x, gamma, None, 1e-6, 2, None)[:, :, -1, -10:-1, 1:-1]
    oracle = F.silu(oracle)
    assert ((padded - oracle).abs() <= 2**-8 * oracle.abs() + 1e-5).all()
