"""Adapters to upstream kernels, on a CPU: upstream's functions are replaced by PyTorch that insists on their terms.

So for every case a guard admits, the adapter must meet those terms without a copy and hand back the right result in
the strides it declares. That the real kernels compute it is the gate's business, on a GPU.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._providers import flashinfer as flashinfer_provider
from candidates._providers import liger as liger_provider
from candidates._providers import sgl_kernel as sgl_kernel_provider
from candidates._providers import sglang as sglang_provider
from candidates._providers import vllm as vllm_provider
from candidates.groupnorm_silu import sglang as groupnorm_sglang
from candidates.groupnorm_silu.op import OP as GROUPNORM_SILU
from candidates.rmsnorm import aten, flashinfer, liger, sgl_kernel, sglang, vllm
from candidates.rmsnorm.op import OP as RMSNORM
from candidates.rmsnorm.op import native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device, Op
from harness.schema.case import Case, Confidence, Dtype, Layout, Param

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
CPU = Device("cpu", "CPU", (0, 0), 2, 2**25, 2**34)
L = Layout


def case(
    layout: Layout = L.CONTIGUOUS,
    dtype: Dtype = Dtype.FP32,
    groups: int | None = None,
    rounding: str = ONCE,
    weight: bool = True,
    eps: float = 1e-6,
    **dims: int,
) -> Case:
    params: dict[str, Param] = {"eps": eps}
    params |= {"rounding": rounding, "weight": weight} if groups is None else {"groups": groups}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params=params,
        dtype=dtype,
        layout=layout,
        calls=1,
        step="denoise step",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=dims,
    )


def candidates_in(*modules: Any) -> list[Candidate]:
    return [value for module in modules for value in vars(module).values() if isinstance(value, Candidate)]


NORMS = candidates_in(aten, flashinfer, liger, sgl_kernel, sglang, vllm)
GROUPNORMS = candidates_in(groupnorm_sglang)
BY_ID = {candidate.id: candidate for candidate in NORMS + GROUPNORMS}


def label(value: Any) -> str | None:
    return value.id if isinstance(value, Candidate) else None


# --- upstream's terms -------------------------------------------------------------------------------------------


def rows(x: Tensor) -> Tensor:
    """Insists on a matrix whose rows are dense."""
    assert x.ndim == 2
    assert x.stride(1) == 1
    return x


def packed(x: Tensor) -> Tensor:
    """Insists on a matrix without gaps, its strides spelt out."""
    assert x.stride() == (x.shape[1], 1)
    return rows(x)


def norm_with_residual(x: Tensor, w: Tensor, b: None, residual: Tensor | None = None, eps: float = 1e-6) -> Any:
    assert b is None
    if residual is None:
        return native(rows(x), w, eps)
    summed = rows(x) + rows(residual)
    return native(summed, w, eps), summed


def norm_infer(x: Tensor, w: Tensor, b: None, eps: float, is_rms_norm: bool) -> Tensor:
    assert is_rms_norm
    assert b is None
    return native(rows(x), w, eps)


def one_pass(x: Tensor, w: Tensor, eps: float) -> Tensor:
    assert x.shape[-1] <= 128
    return native(rows(x), w, eps)


def jit(x: Tensor, w: Tensor, out: Tensor, eps: float) -> None:
    rows(out).copy_(native(rows(x), w, eps))


def hf(x: Tensor, w: Tensor, eps: float, out: Tensor) -> None:
    assert x.shape[-1] % 32 == 0
    rows(out).copy_(native(rows(x), w, eps, BEFORE_WEIGHT))


def cast_before_weight(x: Tensor, w: Tensor) -> Tensor:
    assert x.is_contiguous()
    assert x.dtype == w.dtype
    assert x.numel() > 0
    return native(x, w, 1e-6, BEFORE_WEIGHT)


def jit_fused(x: Tensor, residual: Tensor, w: Tensor, eps: float, *, cast_x_before_out_mul: bool) -> None:
    packed(residual).add_(packed(x))
    x.copy_(native(residual, w, eps, BEFORE_WEIGHT if cast_x_before_out_mul else ONCE))


def add_in_place(see: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    def fused(x: Tensor, residual: Tensor, w: Tensor, eps: float) -> None:
        see(residual).add_(see(x))
        x.copy_(native(residual, w, eps))

    return fused


def flashinfer_norm(x: Tensor, w: Tensor, eps: float, out: Tensor) -> Tensor:
    assert x.ndim == out.ndim
    assert x.ndim in (2, 3)
    assert x.stride(-1) == out.stride(-1) == 1
    out.copy_(native(x, w, eps))
    return out


def vllm_norm(out: Tensor, x: Tensor, w: Tensor, eps: float) -> None:
    assert out.is_contiguous()
    assert x.stride(-1) == 1
    assert 2 <= x.ndim <= 4
    out.copy_(native(x, w, eps))


def sgl_kernel_norm(out: Tensor, x: Tensor, w: Tensor, eps: float, enable_pdl: bool) -> None:
    assert enable_pdl
    assert x.ndim == out.ndim == 2
    assert x.stride(-1) == out.stride(-1) == 1
    out.copy_(native(x, w, eps))


def sgl_kernel_fused(x: Tensor, r: Tensor, w: Tensor, eps: float, enable_pdl: bool) -> None:
    assert enable_pdl
    add_in_place(packed)(x, r, w, eps)


LIGER = {"gemma": ONCE, "llama": BEFORE_WEIGHT}


def liger_norm(x: Tensor, w: Tensor, eps: float, offset: float, casting: str, row_mode: None) -> tuple[Tensor, ...]:
    assert (offset, row_mode) == (0.0, None)
    return native(rows(x), w, eps, LIGER[casting]), x, w


def liger_fused(x: Tensor, r: Tensor, w: Tensor, eps: float, offset: float, casting: str) -> tuple[Tensor, ...]:
    assert offset == 0.0
    summed = rows(x) + rows(r)
    return native(summed, w, eps, LIGER[casting]), summed, w, w


def group_norm_any(x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
    return GROUPNORM_SILU.native(x.contiguous(), w, b, groups, eps)


def group_norm_rows(x: Tensor, w: Tensor, b: Tensor, groups: int, eps: float) -> Tensor:
    assert x.ndim == 3
    assert x.is_contiguous()
    assert x.shape[2].bit_count() == 1
    return F.silu(F.group_norm(x.movedim(2, 1), groups, w, b, eps)).movedim(1, 2).contiguous()


UPSTREAM: dict[str, Callable[..., Any]] = {
    "sglang.ops.diffusion.norm.norm_triton.rms_norm_fn": norm_with_residual,
    "sglang.ops.diffusion.norm.norm_triton.norm_infer": norm_infer,
    "sglang.ops.diffusion.norm.rmsnorm_onepass_triton.triton_one_pass_rms_norm": one_pass,
    "sglang.ops.layernorm.norm.rmsnorm": jit,
    "sglang.ops.layernorm.norm.fused_add_rmsnorm": jit_fused,
    "sglang.ops.layernorm.rmsnorm_hf.rmsnorm_hf": hf,
    "sglang.ops.diffusion.norm.rmsnorm_cast_before_weight_bitexact.rmsnorm_cast_before_weight_bitexact": (
        cast_before_weight
    ),
    "sglang.ops.diffusion.norm.group_norm_silu_triton.triton_group_norm_silu": group_norm_any,
    "sglang.ops.diffusion.norm.group_norm_silu_twopass_triton.group_norm_silu_rows": group_norm_rows,
    "flashinfer.norm.rmsnorm": flashinfer_norm,
    "flashinfer.norm.fused_add_rmsnorm": add_in_place(rows),
    "liger.rms_norm.rms_norm_forward": liger_norm,
    "liger.fused_add_rms_norm.fused_add_rms_norm_forward": liger_fused,
    "sgl_kernel.rmsnorm": sgl_kernel_norm,
    "sgl_kernel.fused_add_rmsnorm": sgl_kernel_fused,
    "vllm.rms_norm": vllm_norm,
    "vllm.fused_add_rms_norm": add_in_place(packed),
}


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (sglang_provider, flashinfer_provider, liger_provider):
        name = provider.PROVIDER.id
        monkeypatch.setattr(provider, "function", lambda module, function, p=name: UPSTREAM[f"{p}.{module}.{function}"])
    for compiled in (sgl_kernel_provider, vllm_provider):
        name = compiled.PROVIDER.id
        monkeypatch.setattr(compiled, "operator", lambda op, p=name: UPSTREAM[f"{p}.{op}"])


# --- every admitted case is computed right ----------------------------------------------------------------------

NORM_CASES = [
    case(T=6, D=128),
    case(T=1, D=64, layout=L.ODD_STRIDE),
    case(T=5, D=256, layout=L.SLICED),
    case(T=5, D=64, layout=L.TRANSPOSED),
    case(T=3, D=100),
    case(B=2, S=3, D=1536),
    case(B=1, S=3, D=64, layout=L.ODD_STRIDE),
    case(B=2, S=3, D=128, layout=L.SLICED),
    case(B=2, S=3, D=64, layout=L.TRANSPOSED),
    case(B=2, S=3, H=4, D=128),
    case(B=2, S=3, H=4, D=64, layout=L.SLICED),
    case(B=1, S=3, H=4, D=64, layout=L.TRANSPOSED),
    case(B=2, S=3, H=4, D=64, layout=L.TRANSPOSED),
    case(B=2, S=1, H=4, D=64, layout=L.TRANSPOSED),
    case(B=1, S=3, H=1, D=64, layout=L.ODD_STRIDE),
    case(B=2, S=3, H=4, D=64, layout=L.CHANNELS_LAST),
    case(B=2, S=3, D=128, weight=False),
    case(T=6, D=128, rounding=BEFORE_WEIGHT),
    case(B=2, S=3, D=1536, rounding=BEFORE_WEIGHT),
]
GROUPNORM_CASES = [
    case(groups=4, N=3, C=8),
    case(groups=4, N=2, C=12, H=3, W=5),
    case(groups=4, N=2, C=16, H=3, W=5, layout=L.CHANNELS_LAST),
    case(groups=4, N=2, C=12, H=3, W=5, layout=L.CHANNELS_LAST),
    case(groups=4, N=2, C=8, H=3, W=5, layout=L.SLICED),
    case(groups=4, N=2, C=8, T=2, H=3, W=5),
    case(groups=4, N=2, C=8, T=2, H=3, W=5, layout=L.CHANNELS_LAST),
    case(groups=4, N=1, C=8, T=1, H=3, W=1, layout=L.CHANNELS_LAST),
    case(groups=4, N=2, C=8, T=2, H=3, W=5, layout=L.TRANSPOSED),
]
ADMITTED = [
    (candidate, op, one)
    for candidates, op, cases in ((NORMS, RMSNORM, NORM_CASES), (GROUPNORMS, GROUPNORM_SILU, GROUPNORM_CASES))
    for candidate in candidates
    for one in cases
    if candidate.guard(one.model_copy(update={"dtype": Dtype.BF16}), H200) is None
]


def strides(x: Tensor) -> list[int]:
    """Strides that mean something: those of dims longer than 1."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


@pytest.mark.parametrize(("candidate", "op", "one"), ADMITTED, ids=label)
def test_every_admitted_case_is_computed_right(candidate: Candidate, op: Op, one: Case) -> None:
    context = op.context(candidate.context) if candidate.context else None
    args = (context or op).inputs(one, SeededDraw(3, torch.float32, torch.device("cpu")))
    expected = (context.compose(op.native) if context else op.native)(**args)
    before = {name: value.clone() for name, value in args.items() if isinstance(value, Tensor)}
    outputs = candidate.run(**args)
    for name in before.keys() - set(candidate.mutates):
        assert torch.equal(args[name], before[name]), name
    if candidate.returns:
        assert outputs is None
        outputs = tuple(args[name] for name in candidate.returns)
    if context is None:
        outputs, expected = (outputs,), (expected,)
        fake = (candidate.fake or op.fake)(**args)
        assert strides(outputs[0]) == strides(fake)
    for output, right in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, right)


def test_every_adapter_is_admitted_to_something() -> None:
    assert {candidate.id for candidate, _, _ in ADMITTED} == BY_ID.keys()


@pytest.mark.parametrize("candidate", BY_ID.values(), ids=label)
def test_the_signature_makes_a_custom_op(candidate: Candidate) -> None:
    schema = torch.library.infer_schema(candidate.run, mutates_args=candidate.mutates)
    assert schema.endswith("-> ()") == bool(candidate.mutates)
    op = RMSNORM if candidate.op == "rmsnorm" else GROUPNORM_SILU
    one = case(T=2, D=128) if op is RMSNORM else case(groups=4, N=2, C=8, H=3, W=5, layout=L.CHANNELS_LAST)
    source = op.context(candidate.context) if candidate.context else op
    arguments = source.inputs(one, SeededDraw(0, torch.float32, torch.device("cpu")))
    named = set(re.findall(r"(\w+)(?=[,)=])", schema.split("->")[0]))
    assert named - {"rounding"} == arguments.keys()
    assert ("rounding" in named) == (op is RMSNORM)


# --- guards give reasons ----------------------------------------------------------------------------------------

REFUSED = [
    ("sglang.rms_norm_fn", case(B=2, S=3, H=4, D=64, layout=L.TRANSPOSED), "no (rows, D) matrix without a copy"),
    ("sglang.rms_norm_fn", case(T=2, D=32769, dtype=Dtype.BF16), "a row of 65538 bytes is longer than 65536"),
    ("sglang.rms_norm_fn", case(T=700_000, D=3072), "32-bit offsets: 2,150,400,000 elements"),
    ("sglang.rms_norm_fn", case(T=250_000, D=3072, layout=L.SLICED), "32-bit offsets: 2,304,000,000 elements"),
    ("sglang.norm_infer", case(B=2, S=3, D=64, layout=L.TRANSPOSED), "no (rows, D) matrix without a copy"),
    ("sglang.norm_infer", case(B=2, S=3, H=4, D=64, layout=L.SLICED), "heads of a packed projection are no (rows, D)"),
    ("liger.rms_norm", case(B=2, S=3, H=4, D=64, layout=L.SLICED), "heads of a packed projection are no (rows, D)"),
    ("sglang.triton_one_pass_rms_norm", case(T=2, D=129), "D=129 is more than 128"),
    ("sglang.jit_rmsnorm", case(T=2, D=512), "takes bfloat16, float16 only, the case is float32"),
    ("sglang.jit_rmsnorm", case(T=2, D=1000, dtype=Dtype.BF16), "D=1000: takes 64, 128"),
    ("sglang.jit_rmsnorm", case(T=2, D=8448, dtype=Dtype.BF16), "D=8448: takes 64, 128"),
    ("sglang.jit_fused_add_rmsnorm", case(T=2, D=512, dtype=Dtype.BF16, layout=L.SLICED), "contiguous tensors only"),
    ("sglang.jit_fused_add_rmsnorm", case(T=2, D=8208, dtype=Dtype.BF16), "multiples of 16 up to 8192"),
    ("flashinfer.rmsnorm", case(T=2, D=64), "takes bfloat16, float16 only"),
    ("flashinfer.rmsnorm", case(T=1_400_000, D=3072, dtype=Dtype.BF16), "32-bit offsets"),
    ("flashinfer.qk_rmsnorm", case(T=2, D=1536, dtype=Dtype.BF16), "D=1536 is more than 256"),
    (
        "flashinfer.qk_rmsnorm",
        case(B=2, S=3, H=4, D=64, dtype=Dtype.BF16, layout=L.TRANSPOSED),
        "batch 2 is no (tokens, heads, D) tensor",
    ),
    ("vllm.rms_norm", case(B=2, S=3, D=64, layout=L.TRANSPOSED), "last dim of a transposed tensor is not contiguous"),
    ("vllm.rms_norm", case(B=2, S=3, H=4, D=64, layout=L.CHANNELS_LAST), "last dim of a channels_last tensor"),
    ("sgl_kernel.fused_add_rmsnorm", case(T=2, D=64, layout=L.SLICED, dtype=Dtype.BF16), "contiguous tensors only"),
    ("vllm.fused_add_rms_norm", case(T=2, D=64, layout=L.SLICED), "contiguous tensors only, the case is sliced"),
    ("liger.rms_norm", case(T=2, D=65537), "D=65537 is more than 65536"),
    ("sglang.jit_rmsnorm_hf", case(T=2, D=512, dtype=Dtype.BF16), "rounds before the weight, the case once"),
    ("sglang.jit_rmsnorm_hf", case(T=2, D=768, dtype=Dtype.BF16, rounding=BEFORE_WEIGHT), "of 512 from there on"),
    ("sglang.rmsnorm_cast_before_weight", case(T=2, D=128, dtype=Dtype.BF16), "rounds before the weight, the case"),
    (
        "sglang.rmsnorm_cast_before_weight",
        case(T=2, D=128, dtype=Dtype.BF16, rounding=BEFORE_WEIGHT, eps=1e-5),
        "its kernel has eps 1e-6 written into it, the case has 1e-05",
    ),
    ("sglang.triton_group_norm_silu", case(groups=2, N=70_000, C=4, H=1, W=1), "past CUDA's limit"),
    ("sglang.group_norm_silu_rows", case(groups=2, N=1, C=8, H=3, W=3), "channels-last tensors only"),
    (
        "sglang.group_norm_silu_rows",
        case(groups=32, N=1, C=320, H=3, W=3, layout=L.CHANNELS_LAST),
        "C=320 is no power of two up to 2048",
    ),
    (
        "sglang.group_norm_silu_rows",
        case(groups=32, N=1, C=4096, H=3, W=3, layout=L.CHANNELS_LAST),
        "C=4096 is no power of two up to 2048",
    ),
]


@pytest.mark.parametrize(("candidate_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(candidate_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[candidate_id].guard(one, H200) or "")


@pytest.mark.parametrize("candidate", NORMS, ids=label)
def test_only_kernels_that_can_do_without_a_weight_are_given_none(candidate: Candidate) -> None:
    one = case(T=2, D=128, dtype=Dtype.BF16, weight=False)
    able = {"torch.fused_rms_norm", "liger.rms_norm", "sglang.rms_norm_fn", "sglang.rms_norm_fn_residual",
            "sglang.norm_infer"}  # fmt: skip
    assert (candidate.guard(one, H200) is None) == (candidate.id in able)


@pytest.mark.parametrize(
    ("candidate_id", "rounding"),
    [
        ("liger.rms_norm", ONCE),
        ("liger.rms_norm", BEFORE_WEIGHT),
        ("liger.fused_add_rms_norm", ONCE),
        ("liger.fused_add_rms_norm", BEFORE_WEIGHT),
        ("sglang.jit_fused_add_rmsnorm", ONCE),
        ("sglang.jit_fused_add_rmsnorm", BEFORE_WEIGHT),
        ("sglang.jit_rmsnorm_hf", BEFORE_WEIGHT),
        ("sglang.rmsnorm_cast_before_weight", BEFORE_WEIGHT),
    ],
)
def test_a_kernel_that_knows_the_rounding_is_told_which(candidate_id: str, rounding: str) -> None:
    candidate = BY_ID[candidate_id]
    source = RMSNORM.context(candidate.context) if candidate.context else RMSNORM
    one = case(T=4, D=128, dtype=Dtype.BF16, rounding=rounding)
    assert candidate.guard(one, H200) is None
    args = source.inputs(one, SeededDraw(0, torch.bfloat16, torch.device("cpu")))
    x = args["x"] + args["residual"] if candidate.context else args["x"]
    by_rounding = {each: native(x, args["weight"], 1e-6, each) for each in (ONCE, BEFORE_WEIGHT)}
    outputs = candidate.run(**args)
    got = args["x"] if candidate.returns else outputs[0] if candidate.context else outputs
    assert {each: torch.equal(got, y) for each, y in by_rounding.items()} == {
        each: each == rounding for each in by_rounding
    }


def test_widths_that_the_compiled_kernels_take() -> None:
    guard = BY_ID["sglang.jit_rmsnorm"].guard
    for D in (64, 128, 256, 512, 1536, 3072, 5120, 8192, 8704, 16384):
        assert guard(case(T=2, D=D, dtype=Dtype.BF16), H200) is None, D


def test_grid_limits_follow_the_size_of_a_group() -> None:
    guard = BY_ID["sglang.triton_group_norm_silu"].guard
    small_groups = case(groups=32, N=65_535, C=64, H=8, W=8)
    large_groups = case(groups=1, N=2, C=128, T=63, H=256, W=256)
    too_large = case(groups=1, N=2, C=129, T=64, H=256, W=256)
    assert [guard(one, H200) is None for one in (small_groups, large_groups, too_large)] == [True, True, False]


def test_aten_needs_a_gpu() -> None:
    assert BY_ID["torch.fused_rms_norm"].guard(NORM_CASES[0], CPU) == "needs an NVIDIA GPU"


@pytest.mark.parametrize("candidate_id", [i for i in BY_ID if i.startswith(("flashinfer.", "sgl_kernel.", "vllm."))])
def test_a_weight_of_another_dtype_is_not_read_as_nonsense(candidate_id: str) -> None:
    candidate = BY_ID[candidate_id]
    args = {"x": torch.ones(2, 64), "weight": torch.ones(64, dtype=torch.bfloat16), "eps": 1e-6}
    if candidate.context:
        args["residual"] = torch.ones(2, 64)
    with pytest.raises(TypeError, match=r"weight is torch\.bfloat16 and the activation torch\.float32"):
        candidate.run(**args)


# --- kernel names -----------------------------------------------------------------------------------------------

SEEN = {
    "sglang.triton_group_norm_silu": [
        ["_group_norm_silu_contiguous_kernel"],
        ["_group_norm_stats_kernel", "_group_norm_finalize_stats_kernel", "_group_norm_apply_kernel"],
        ["_group_norm_stats_kernel", "_group_norm_finalize_stats_kernel", "_group_norm_apply_scalar_affine_kernel"],
    ],
    "sglang.group_norm_silu_rows": [["_gn_partial_rows_kernel", "_gn_finalize_kernel", "_gn_apply_rows_kernel"]],
}
FELL_BACK = [
    "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<c10::BFloat16, float>(long, float, ...)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_kernel(...)>",
]


@pytest.mark.parametrize("candidate_id", SEEN)
def test_the_fallback_to_aten_does_not_pass_for_the_kernels(candidate_id: str) -> None:
    patterns = BY_ID[candidate_id].kernels
    for names in SEEN[candidate_id]:
        assert all(any(re.search(pattern, name) for name in names) for pattern in patterns)
    assert not any(re.search(pattern, name) for pattern in patterns for name in FELL_BACK)
