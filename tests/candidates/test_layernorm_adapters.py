"""LayerNorm's and AdaLayerNorm's adapters on a CPU: upstream's functions are replaced by PyTorch that insists on terms.

So for every case a guard admits, the adapter must meet those terms and hand back the right result in the strides it
declares. That the real kernels compute it is the gate's business, on a GPU.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from candidates._providers import flashinfer as flashinfer_provider
from candidates._providers import liger as liger_provider
from candidates._providers import sglang as sglang_provider
from candidates.adalayernorm import flashinfer as ada_flashinfer
from candidates.adalayernorm import inhouse as ada_inhouse
from candidates.adalayernorm import op as ada
from candidates.adalayernorm import sglang as ada_sglang
from candidates.adalayernorm import sglang_cutedsl as ada_cutedsl
from candidates.layernorm import aten, flashinfer, inhouse, liger, sglang
from candidates.layernorm import op as ln
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device, Op
from harness.schema.case import Case, Confidence, Dtype, Layout

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
CPU = Device("cpu", "CPU", (0, 0), 2, 2**25, 2**34)
L = Layout
VLLM_OMNI, WAN = ada.VLLM_OMNI, ada.WAN


def case(
    layout: Layout = L.CONTIGUOUS, dtype: Dtype = Dtype.BF16, b: int = 2, s: int = 6, d: int = 512, **params: Any
) -> Case:
    dims = {"B": b, "S": s, "D": d}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": 1e-6, **params},
        dtype=dtype,
        layout=layout,
        calls=1,
        step="denoise step",
        source="made up for a test",
        confidence=Confidence.MEMORY,
        rehearsal=dims,
    )


def modulated(formula: str = VLLM_OMNI, modulation: str = "batch", frames: int = 1, **more: Any) -> Case:
    return case(formula=formula, modulation=modulation, frames=frames, **more)


def candidates_in(*modules: Any) -> list[Candidate]:
    return [value for module in modules for value in vars(module).values() if isinstance(value, Candidate)]


NORMS = candidates_in(aten, flashinfer, liger, sglang)
MODULATED = candidates_in(ada_flashinfer, ada_sglang, ada_cutedsl)
BY_ID = {f"{candidate.op}/{candidate.id}": candidate for candidate in NORMS + MODULATED}


def label(value: Any) -> str | None:
    return value.id if isinstance(value, Candidate) else None


# --- upstream's terms -------------------------------------------------------------------------------------------


def rows(x: Tensor) -> Tensor:
    """Insists on a matrix whose rows are dense."""
    assert x.ndim == 2
    assert x.stride(1) == 1
    return x


def sglang_norm(x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, is_rms_norm: bool) -> Tensor:
    assert not is_rms_norm
    return ln.native(rows(x), w, b, eps)


def liger_norm(x: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, ...]:
    return ln.native(rows(x), w, b, eps), x, w


def flashinfer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    assert x.is_contiguous()
    assert x.ndim == 2
    assert x.dtype is torch.bfloat16
    assert gamma.dtype is beta.dtype is torch.float32
    return ln.native(x, gamma, beta, eps)


def kda(dtype: torch.dtype, formula: str) -> Callable[..., Tensor]:
    def fused(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        assert x.is_contiguous()
        assert x.dtype is torch.bfloat16
        for m in (scale, shift):
            assert m.shape == (x.shape[0], x.shape[2])
            assert m.dtype is dtype
        return ada.native(x, scale, shift, eps, formula)

    return fused


def scale_shift(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    assert x.is_contiguous()
    if scale.ndim == 4:
        # the kernel reads the shift per token whatever its shape
        assert shift.numel() == x.numel()
    return ada.modulate(x, scale, shift)


def select01(
    x: Tensor, w: None, b: None, s0: Tensor, t0: Tensor, g0: Tensor, s1: Tensor, t1: Tensor, g1: Tensor,
    index: Tensor, eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    assert w is b is None
    assert all(m.shape == (x.shape[0], x.shape[2]) for m in (s0, t0, g0, s1, t1, g1))
    assert index.shape == x.shape[:2]
    chosen = [torch.where(index[..., None] > 0, one[:, None], zero[:, None]) for zero, one in ((s0, s1), (t0, t1))]
    return ada.native(x, chosen[0], chosen[1], eps, WAN), x


def residual_triton(
    *, residual: Tensor, x: Tensor, gate: Tensor, shift: Tensor, scale: Tensor, weight: None, bias: None, eps: float
) -> tuple[Tensor, Tensor]:
    assert x.shape[0] == 1
    assert gate.shape == (1, 1, x.shape[2])
    assert scale.numel() == shift.numel() == x.shape[2]
    h = residual.float() + x.float() * gate.float()
    return ada.native(h, scale.view(1, 1, -1), shift.view(1, 1, -1), eps, WAN).to(x.dtype), h.to(x.dtype)


def cute(x: Tensor, w: None, b: None, scale: Tensor, shift: Tensor, kind: str, eps: float) -> Tensor:
    assert kind == "layer"
    assert x.shape[-1] % 256 == 0
    return ada.native(x, scale, shift, eps, WAN)


def cute_residual(
    residual: Tensor, x: Tensor, gate: Tensor, w: None, b: None, scale: Tensor, shift: Tensor, kind: str, eps: float
) -> tuple[Tensor, Tensor]:
    h = (residual.float() + x.float() * ada._spread(gate, x.shape[1]).float()).to(x.dtype)
    return cute(h, w, b, scale, shift, kind, eps), h


def strided_by_six(m: Tensor, x: Tensor) -> Tensor:
    assert m.shape == x.shape
    assert m.dtype is torch.bfloat16
    assert m.stride()[1:] == (6 * 3072, 1)
    return m


def dit(x: Tensor, scale: Tensor, shift: Tensor, *, scale_bias: Tensor, shift_bias: Tensor, epsilon: float) -> Any:
    assert x.is_contiguous()
    assert not scale_bias.any()
    assert not shift_bias.any()
    return x, ada.native(x, strided_by_six(scale, x), strided_by_six(shift, x), epsilon, WAN)


def dit_residual(x: Tensor, residual: Tensor, gate: Tensor, *modulation: Tensor, gate_bias: Tensor, **more: Any) -> Any:
    assert residual.is_contiguous()
    h = (residual.float() + x.float() * (strided_by_six(gate, x).float() + gate_bias)).to(x.dtype)
    return dit(h, *modulation, **more)


_KDA = "sglang.kda_kernels.layernorm_modulate_triton"
_CUTE = "sglang.ops.diffusion.norm.scale_residual_norm_cutedsl"
_SCALE_SHIFT = "sglang.ops.diffusion.modulate.scale_shift_triton"
_RESIDUAL = "sglang.ops.diffusion.norm.scale_residual_norm_scale_shift_triton"
UPSTREAM: dict[str, Callable[..., Any]] = {
    "sglang.ops.diffusion.norm.norm_triton._norm_forward": sglang_norm,
    "sglang.ops.diffusion.norm.norm_triton.norm_infer": sglang_norm,
    f"{_KDA}.fused_layernorm_modulate_raw": kda(torch.bfloat16, VLLM_OMNI),
    f"{_KDA}.try_fused_fp32_layernorm_bf16": kda(torch.float32, WAN),
    f"{_SCALE_SHIFT}.fuse_scale_shift_kernel": scale_shift,
    f"{_SCALE_SHIFT}.fuse_layernorm_scale_shift_gate_select01_kernel": select01,
    f"{_RESIDUAL}.fused_scale_residual_norm_scale_shift_triton": residual_triton,
    f"{_CUTE}.fused_norm_scale_shift": cute,
    f"{_CUTE}.fused_scale_residual_norm_scale_shift": cute_residual,
    "flashinfer.norm.layernorm": flashinfer_norm,
    "flashinfer.norm.fused_dit_residual_layernorm_scale_shift": dit,
    "flashinfer.norm.fused_dit_gate_residual_layernorm_scale_shift": dit_residual,
    "liger.layer_norm.layer_norm_forward": liger_norm,
}


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (sglang_provider, flashinfer_provider, liger_provider):
        name = provider.PROVIDER.id
        monkeypatch.setattr(provider, "function", lambda module, function, p=name: UPSTREAM[f"{p}.{module}.{function}"])


# --- every admitted case is computed right ----------------------------------------------------------------------

NORM_CASES = [case(layout, weights=weights) for weights in ("none", "activation", "float32") for layout in
              (L.CONTIGUOUS, L.SLICED, L.TRANSPOSED, L.ODD_STRIDE)]  # fmt: skip
MODULATED_CASES = [
    modulated(formula, modulation, frames, b=b, s=s, d=d, layout=layout)
    for formula in (VLLM_OMNI, WAN)
    for modulation, frames in (("batch-2d", 1), ("batch", 1), ("token", 1), ("frame", 3), ("frame-token", 3))
    for b, s, d, layout in ((1, 6, 512, L.CONTIGUOUS), (2, 6, 64, L.SLICED), (2, 3, 3072, L.CONTIGUOUS))
]
ADMITTED = [
    (candidate, op, one)
    for candidates, op, cases in ((NORMS, ln.OP, NORM_CASES), (MODULATED, ada.OP, MODULATED_CASES))
    for candidate in candidates
    for one in cases
    if candidate.guard(one, H200) is None
]


@pytest.mark.parametrize(("candidate", "op", "one"), ADMITTED, ids=label)
def test_every_admitted_case_is_computed_right(candidate: Candidate, op: Op, one: Case) -> None:
    context = op.context(candidate.context) if candidate.context else None
    args = (context or op).inputs(one, SeededDraw(3, torch.bfloat16, torch.device("cpu")))
    expected = (context.compose(op.native) if context else op.native)(**args)
    prepared = candidate.prepare(args) if candidate.prepare else args
    assert prepared.keys() == args.keys()
    outputs = candidate.run(**prepared)
    fakes = (candidate.fake or op.fake)(**prepared)
    if context is None:
        outputs, expected, fakes = (outputs,), (expected,), (fakes,)
    for output, right, fake in zip(outputs, expected, fakes, strict=True):
        assert (output.shape, output.dtype, output.stride()) == (fake.shape, fake.dtype, fake.stride())
        torch.testing.assert_close(output, right, rtol=2e-2, atol=4e-2)


def test_every_adapter_is_admitted_to_something() -> None:
    assert {f"{candidate.op}/{candidate.id}" for candidate, _, _ in ADMITTED} == BY_ID.keys()


@pytest.mark.parametrize("candidate", BY_ID.values(), ids=label)
def test_the_signature_makes_a_custom_op(candidate: Candidate) -> None:
    schema = torch.library.infer_schema(candidate.run, mutates_args=candidate.mutates)
    assert ("Tensor? weight" in schema) == (candidate.op == "layernorm" and candidate.prepare is None)
    assert schema.endswith("-> (Tensor, Tensor)") == bool(candidate.context)


# --- guards give reasons ----------------------------------------------------------------------------------------

REFUSED = [
    ("layernorm/torch.native_layer_norm", case(weights="float32"), "takes weights of the activation's dtype"),
    ("layernorm/sglang.layer_norm_fn", case(L.TRANSPOSED, weights="none"), "no (rows, D) matrix without a copy"),
    ("layernorm/sglang.norm_infer", case(b=1, s=700_000, d=3072, weights="none"), "32-bit offsets"),
    ("layernorm/liger.layer_norm", case(L.TRANSPOSED, weights="none"), "no (rows, D) matrix without a copy"),
    ("layernorm/flashinfer.layernorm", case(L.SLICED, weights="none"), "takes contiguous tensors only"),
    ("layernorm/flashinfer.layernorm", case(dtype=Dtype.FP16, weights="none"), "takes bfloat16 only"),
    ("layernorm/flashinfer.layernorm", case(d=513, weights="none"), "takes even widths"),
    ("adalayernorm/sglang.fused_layernorm_modulate", modulated(WAN), "computes the formula of vllm-omni"),
    ("adalayernorm/sglang.fused_layernorm_modulate", modulated(d=514), "D=514: takes multiples of 4 up to 8192"),
    ("adalayernorm/sglang.fused_layernorm_modulate", modulated(modulation="token"), "the case has token"),
    ("adalayernorm/sglang.fused_fp32_layernorm", modulated(), "computes the formula of wan"),
    ("adalayernorm/sglang.norm_then_scale_shift", modulated(modulation="frame", frames=3), "the case has frame"),
    ("adalayernorm/sglang.norm_then_scale_shift", modulated(WAN), "rounded between the two kernels"),
    ("adalayernorm/sglang.select01", modulated(b=1, s=700_000, d=3072), "32-bit offsets"),
    ("adalayernorm/sglang.triton_residual_norm_scale_shift", modulated(), "takes one batch, the case has 2"),
    ("adalayernorm/sglang.fused_norm_scale_shift", modulated(d=560), "D=560: takes multiples of 256"),
    ("adalayernorm/flashinfer.fused_dit_layernorm_scale_shift", modulated(modulation="token"), "takes 3072 only"),
    ("adalayernorm/flashinfer.fused_dit_layernorm_scale_shift", modulated(d=3072), "takes modulation token"),
    (
        "adalayernorm/flashinfer.fused_dit_gate_residual_layernorm_scale_shift",
        modulated(WAN, "token", d=3072),
        "takes bfloat16 modulations only",
    ),
]


@pytest.mark.parametrize(("candidate_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(candidate_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[candidate_id].guard(one, H200) or "")


def test_sglang_that_declines_is_not_a_result() -> None:
    UPSTREAM_NONE = {f"{_KDA}.try_fused_fp32_layernorm_bf16": lambda *args: None}
    args = ada.OP.inputs(modulated(WAN), SeededDraw(0, torch.bfloat16, torch.device("cpu")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sglang_provider, "function", lambda module, name: UPSTREAM_NONE[f"sglang.{module}.{name}"])
        with pytest.raises(RuntimeError, match="declines these tensors"):
            ada_sglang.fused_fp32_layernorm.run(**args)


@pytest.mark.parametrize(
    ("candidate", "one"),
    [
        (inhouse.triton_layernorm_exact, case(weights="none")),
        (ada_inhouse.triton_adalayernorm_exact, modulated()),
        (ada_inhouse.triton_residual_adalayernorm_exact, modulated()),
    ],
    ids=label,
)
def test_bit_exact_kernels_are_for_a_gpu_and_for_some_widths(candidate: Candidate, one: Case) -> None:
    assert candidate.guard(one, H200) is None
    assert "reproduces the order of torch's CUDA kernel" in (candidate.guard(one, CPU) or "")
    narrow = one.model_copy(update={"dims": {**one.dims, "D": 508}})
    assert "multiples of 4 from 512 to 8192" in (candidate.guard(narrow, H200) or "")


def test_a_modulating_kernel_takes_no_affine_part() -> None:
    guard = inhouse.triton_layernorm_modulate.guard
    assert guard(case(weights="none"), H200) is None
    assert "no affine part" in (guard(case(weights="float32"), H200) or "")


@pytest.mark.parametrize("candidate", candidates_in(inhouse, ada_inhouse), ids=label)
def test_our_fakes_take_what_the_kernels_take(candidate: Candidate) -> None:
    op, one = (ln.OP, case(weights="none")) if candidate.op == "layernorm" else (ada.OP, modulated())
    context = op.context(candidate.context) if candidate.context else None
    args = (context or op).inputs(one, SeededDraw(0, torch.bfloat16, torch.device("cpu")))
    expected = (context.compose(op.native) if context else op.native)(**args)
    fakes = (candidate.fake or op.fake)(**args)
    shapes = [[tuple(y.shape) for y in (ys if isinstance(ys, tuple) else (ys,))] for ys in (fakes, expected)]
    assert shapes[0] == shapes[1]
