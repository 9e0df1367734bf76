"""Adapters of QK-norm + RoPE on a CPU: upstream's functions are replaced by PyTorch that insists on their terms.

For every case a guard admits, the adapter must meet those terms and hand back the right result. That the real kernels
compute it is the gate's business, on a GPU.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from candidates._providers import flashinfer as flashinfer_provider
from candidates._providers import sglang as sglang_provider
from candidates._providers import unpacked
from candidates._providers import vllm as vllm_provider
from candidates._providers import vllm_omni as vllm_omni_provider
from candidates.qknorm_rope import flashinfer, sglang, vllm, vllm_omni
from candidates.qknorm_rope.op import OP, native
from candidates.qknorm_rope.tables import packed_qkv
from harness.measure.gate import copied_args
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device
from harness.provision.packages import VLLM_OMNI
from harness.provision.providers import REPOSITORY
from harness.schema.case import Case, Dtype, Layout
from tests.candidates.qknorm_rope_cases import case

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
L = Layout
NEOX = {"pairs": "neox"}
BF16 = {"table_dtype": "bfloat16"}
BY_ID = {
    value.id: value
    for module in (flashinfer, sglang, vllm, vllm_omni)
    for value in vars(module).values()
    if isinstance(value, Candidate)
}

# --- upstream's terms ---------------------------------------------------------------------------------------------


def right(q: Tensor, k: Tensor, qw: Tensor, kw: Tensor, cos: Tensor, sin: Tensor, eps: float, neox: bool,
          table: str = "half", across: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tokens, heads, D) tensors, a table row for each token."""
    pairs = "neox" if neox else "interleaved"
    y = native(q[None], k[None], qw, kw, cos[None], sin[None], eps, across, pairs, table, "none")
    return y[0][0], y[1][0]


def halves(cache: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    assert cache.ndim == 2
    assert cache.is_contiguous()
    assert positions.ndim == 1
    assert positions.dtype is torch.int64
    rows = cache[positions]
    return rows.chunk(2, dim=-1)  # type: ignore[return-value]


def jit_out(
    q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, qw: Tensor, kw: Tensor, cache: Tensor, pos: Tensor, *,
    is_neox: bool, eps: float, round_norm_before_rope: bool, cache_has_full_width: bool,
) -> None:  # fmt: skip
    for x in (q, k, q_out, k_out):
        assert x.ndim == 3
        assert x.stride(2) == 1
    assert q.stride(1) == k.stride(1) or 1 in (q.shape[1], k.shape[1])
    assert pos.shape == (q.shape[0],)
    table = "full" if cache_has_full_width else "half"
    y = right(q, k, qw, kw, *halves(cache, pos), eps, is_neox, table)
    q_out.copy_(y[0])
    k_out.copy_(y[1])


def jit_in_place(q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> None:
    jit_out(q, k, q, k, *args, **kwargs)


def norm_in_place(q: Tensor, k: Tensor, qw: Tensor, kw: Tensor, eps: float) -> None:
    still = torch.ones(q.shape[0], 1), torch.zeros(q.shape[0], 1)
    assert all(x.ndim == 3 and (x.shape[1] == 1 or x.stride(1) == x.shape[2]) for x in (q, k))
    for x, y in zip((q, k), right(q, k, qw, kw, *still, eps, False), strict=True):
        x.copy_(y)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    assert x.ndim == 3
    assert cos.shape == sin.shape == (x.shape[0], x.shape[2] // 2)
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[:, None], sin[:, None]
    return torch.stack((first * c - second * s, second * c + first * s), -1).flatten(-2)


def complex_rope(x: Tensor, weight: Tensor, rope: Tensor, eps: float) -> Tensor:
    assert rope.dtype is torch.complex64
    assert rope.shape == (x.shape[1], x.shape[3] // 2)
    y = native(x, x, weight, weight, rope.real, rope.imag, eps, False, "interleaved", "half", "before_weight")
    return y[0].contiguous()


def flux2(q: Tensor, k: Tensor, qw: Tensor, kw: Tensor, cache: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    assert q.shape == k.shape
    assert q.stride() == k.stride()
    assert q.stride(2) == q.shape[3]
    assert q.shape[0] == 1 or q.stride(0) == q.shape[1] * q.stride(1)
    assert cache.dtype is torch.float32
    assert cache.shape[0] >= q.shape[1]
    cos, sin = cache[: q.shape[1]].chunk(2, dim=-1)
    return native(q, k, qw, kw, cos, sin, eps, False, "interleaved", "half", "none")


def of_packed(qkv: Tensor, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    assert qkv.is_contiguous()
    q, k, _ = qkv.split((heads * head_dim, kv_heads * head_dim, qkv.shape[1] - (heads + kv_heads) * head_dim), -1)
    return q.unflatten(-1, (heads, head_dim)), k.unflatten(-1, (kv_heads, head_dim))


def table_packed(qkv: Tensor, pos: Tensor, qw: Tensor, kw: Tensor, cache: Tensor, heads: int, kv_heads: int,
                 head_dim: int, eps: float) -> None:  # fmt: skip
    q, k = of_packed(qkv, heads, kv_heads, head_dim)
    for x, y in zip((q, k), right(q, k, qw, kw, *halves(cache, pos), eps, True), strict=True):
        x.copy_(y)


def vllm_fused(qkv: Tensor, heads: int, kv_heads: int, v_heads: int, head_dim: int, eps: float, qw: Tensor,
               kw: Tensor, cache: Tensor, neox: bool, pos: Tensor) -> None:  # fmt: skip
    assert qkv.shape[1] == (heads + kv_heads + v_heads) * head_dim
    assert cache.shape[1] <= head_dim
    q, k = of_packed(qkv, heads, kv_heads, head_dim)
    for x, y in zip((q, k), right(q, k, qw, kw, *halves(cache, pos), eps, neox), strict=True):
        x.copy_(y)


def vllm_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    assert out.is_contiguous()
    assert x.stride(-1) == 1
    assert 2 <= x.ndim <= 4
    out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps))


def vllm_rotary(pos: Tensor, q: Tensor, k: Tensor, head_size: int, cache: Tensor, neox: bool) -> None:
    for x in (q, k):
        assert x.ndim == 3
        assert x.shape[2] == head_size
        x.copy_(rotate_alone(x, *halves(cache, pos), neox))


def rotate_alone(x: Tensor, cos: Tensor, sin: Tensor, neox: bool) -> Tensor:
    """RoPE without a norm: native's on a unit weight, times the RMS it divides by."""
    ones = torch.ones(x.shape[-1])
    rms = x.square().mean(-1, keepdim=True).add(1e-12).sqrt()
    return right(x, x, ones, ones, cos, sin, 1e-12, neox)[0] * rms


def flashinfer_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    assert x.ndim == out.ndim
    assert x.ndim in (2, 3)
    assert x.stride(-1) == out.stride(-1) == 1
    vllm_norm(out, x, weight, eps)


def flashinfer_rope(pos: Tensor, q: Tensor, k: Tensor, head_size: int, cache: Tensor, is_neox: bool) -> Any:
    assert cache.dtype is torch.float32
    assert pos.max() + 1 < cache.shape[0]
    turned = (rotate_alone(x.view(x.shape[0], -1, head_size), *halves(cache, pos), is_neox) for x in (q, k))
    return tuple(x.flatten(1) for x in turned)


def omni(q: Tensor, k: Tensor, qw: Tensor, kw: Tensor, table: Tensor, eps: float, *, interleaved: bool) -> Any:
    assert q.ndim == k.ndim == 3
    assert table.shape[0] == q.shape[0]
    y = right(q, k, qw, kw, *table.chunk(2, dim=-1), eps, not interleaved)
    return y[0].contiguous(), y[1].contiguous()


DIFFUSION = "sglang.ops.diffusion.rope"
UPSTREAM: dict[str, Callable[..., Any]] = {
    f"{DIFFUSION}.qknorm_rope_jit.fused_inplace_qknorm_rope": jit_in_place,
    f"{DIFFUSION}.qknorm_rope_jit.fused_qknorm_rope_out_of_place": jit_out,
    f"{DIFFUSION}.rotary_triton.apply_rotary_embedding": rotary,
    f"{DIFFUSION}.qknorm_complex_rope_triton.qknorm_complex_rope": complex_rope,
    f"{DIFFUSION}.qknorm_complex_rope_jit.qknorm_complex_rope_cuda": complex_rope,
    f"{DIFFUSION}.flux2_qknorm_rope_triton.flux2_strided_qknorm_rope": flux2,
    "sglang.ops.layernorm.norm.fused_inplace_qknorm": norm_in_place,
    "sglang.ops.attention.table_qk_norm_rope.table_qk_norm_rope_": table_packed,
    "vllm.fused_qk_norm_rope": vllm_fused,
    "vllm.rms_norm": vllm_norm,
    "vllm.rotary_embedding": vllm_rotary,
    "flashinfer.norm.rmsnorm": flashinfer_norm,
    "flashinfer.rope.apply_rope_with_cos_sin_cache": flashinfer_rope,
    "vllm_omni.fused_qk_norm_rope.fused_qk_norm_rope": omni,
}


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (sglang_provider, flashinfer_provider, vllm_omni_provider):
        name = provider.PROVIDER.id
        monkeypatch.setattr(provider, "function", lambda module, function, p=name: UPSTREAM[f"{p}.{module}.{function}"])
    monkeypatch.setattr(vllm_provider, "operator", lambda name: UPSTREAM[f"vllm.{name}"])


# --- every admitted case is computed right ------------------------------------------------------------------------

SIZES = {"S": 3, "D": 128}
CASES = [
    case(**SIZES),
    case(**SIZES, table="repeated"),
    case(**SIZES, table="full"),
    case(**SIZES, per_batch=True, rounding="none"),
    case(**SIZES, rounding="before_weight"),
    case(**SIZES, rounding="before_weight", table="repeated", layout=L.SLICED),
    case(**SIZES, layout=L.SLICED),
    case(**SIZES, layout=L.SLICED, H=8, queries_per_kv=4, **NEOX),
    case(**SIZES, H=8, queries_per_kv=4, table="repeated", **NEOX),
    case(**SIZES, H=8, queries_per_kv=4, rotary_dim=64, per_batch=True, **NEOX),
    case(**SIZES, rotary_dim=96, layout=L.SLICED, **NEOX),
    case(**SIZES, rotary_dim=64),
    case(**SIZES, table="full", **NEOX),
    case(**SIZES, across_heads=True, table="repeated"),
    case(**SIZES, across_heads=True, layout=L.SLICED, queries_per_kv=2),
    case(**SIZES, layout=L.TRANSPOSED),
    case(**SIZES, B=1, layout=L.TRANSPOSED),
    case(**SIZES, B=1, layout=L.ODD_STRIDE),
    case(**SIZES, layout=L.CHANNELS_LAST),
    case(S=3, D=64, layout=L.SLICED, **NEOX),
    case(S=3, D=2048, H=1, table="repeated"),
]
ADMITTED = [
    (candidate, one)
    for candidate in BY_ID.values()
    for one in CASES
    if candidate.guard(one.model_copy(update={"dtype": Dtype.BF16}), H200) is None
]


@pytest.mark.parametrize(("candidate", "one"), ADMITTED, ids=lambda v: v.id)
def test_every_admitted_case_is_computed_right(candidate: Candidate, one: Case) -> None:
    original = OP.inputs(one, SeededDraw(3, torch.float32, torch.device("cpu")))
    expected = native(**original)
    args = copied_args(original)
    prepared = candidate.prepare(args) if candidate.prepare else args
    outputs = candidate.run(**prepared)
    for name in {"q", "k", "q_weight", "k_weight", "cos", "sin"} - set(candidate.mutates):
        assert torch.equal(args[name], original[name]), name
    if candidate.returns:
        assert outputs is None
        outputs = tuple(args[name] for name in candidate.returns)
    else:
        assert all(y.is_contiguous() for y in outputs)
    for output, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def test_every_adapter_but_one_is_admitted_to_something() -> None:
    assert BY_ID.keys() - {candidate.id for candidate, _ in ADMITTED} == {"flashinfer.fused_qk_rmsnorm_rope"}


@pytest.mark.parametrize("candidate", [c for c in BY_ID.values() if c.prepare], ids=lambda c: c.id)
def test_tables_of_both_parts_of_a_joint_sequence_are_prepared(candidate: Candidate) -> None:
    one = next(one for other, one in ADMITTED if other is candidate)
    args = OP.context("joint").inputs(one, SeededDraw(3, torch.float32, torch.device("cpu")))
    assert candidate.prepare is not None
    prepared = candidate.prepare(args)
    assert prepared.keys() == args.keys()
    image = {name: value for name, value in prepared.items() if not name.startswith("text_")}
    text = {name.removeprefix("text_"): value for name, value in prepared.items() if name.startswith("text_")}
    wanted = native(**(image | {n: args[f"text_{n}"] for n in text}))
    outputs = candidate.run(**(image | text)) or (text["q"], text["k"])
    for output, right_one in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(output, right_one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("candidate", BY_ID.values(), ids=lambda c: c.id)
def test_the_signature_makes_a_custom_op(candidate: Candidate) -> None:
    schema = torch.library.infer_schema(candidate.run, mutates_args=candidate.mutates)
    assert schema.endswith("-> ()") == bool(candidate.returns)
    arguments = OP.inputs(CASES[0], SeededDraw(0, torch.float32, torch.device("cpu")))
    assert set(re.findall(r"(\w+)(?=[,)])", schema.split("->")[0])) == arguments.keys()


# --- packed views -------------------------------------------------------------------------------------------------


def test_packed_views_are_recognised() -> None:
    args = OP.inputs(case(H=4, queries_per_kv=2, layout=L.SLICED), SeededDraw(0, torch.float32, torch.device("cpu")))
    qkv = packed_qkv(args["q"], args["k"])
    assert qkv is not None
    assert qkv.shape == (10, 128)
    assert torch.equal(qkv[:, :64], args["q"].reshape(10, 64))
    assert torch.equal(qkv[:, 64:96], args["k"].reshape(10, 32))
    assert qkv.data_ptr() == args["q"].data_ptr()


@pytest.mark.parametrize(("batch", "seq"), [(2, 1), (1, 3), (1, 1)])
def test_packed_views_of_few_tokens_are_recognised(batch: int, seq: int) -> None:
    one = case(B=batch, S=seq, H=4, queries_per_kv=2, layout=L.SLICED)
    args = OP.inputs(one, SeededDraw(0, torch.float32, torch.device("cpu")))
    qkv = packed_qkv(args["q"], args["k"])
    assert qkv is not None
    assert torch.equal(qkv[:, :64], args["q"].reshape(-1, 64))
    assert torch.equal(qkv[:, 64:96], args["k"].reshape(-1, 32))


def test_what_is_not_packed() -> None:
    base = torch.randn(2, 5, 12, 16)
    q, k = base[:, :, :4], base[:, :, 4:8]
    assert packed_qkv(q, k) is not None
    assert packed_qkv(k, q) is None, "k first"
    assert packed_qkv(q, k.clone()) is None, "two storages"
    assert packed_qkv(q, base[:, :, 8:]) is None, "k not next to q"
    assert packed_qkv(q[:, ::2], k[:, ::2]) is None, "batches not in one run"
    assert packed_qkv(base[:, :, 1:5], base[:, :, 5:9]) is None, "not from the row's start"


# --- guards give reasons ------------------------------------------------------------------------------------------

B = Dtype.BF16
ACROSS = case(**SIZES, across_heads=True, dtype=B)
REFUSED = [
    ("sglang.fused_qknorm_rope_out_of_place", ACROSS, "norms each head by itself"),
    ("sglang.fused_qknorm_rope_out_of_place", case(**SIZES), "takes bfloat16, float16 only"),
    ("sglang.fused_qknorm_rope_out_of_place", case(D=80, dtype=B), "D=80: takes 64, 128, 256"),
    ("sglang.fused_qknorm_rope_out_of_place", case(**SIZES, dtype=B, layout=L.TRANSPOSED), "without a copy"),
    ("sglang.fused_qknorm_rope_out_of_place", case(**SIZES, dtype=B, rotary_dim=6), "does not end on a lane"),
    ("sglang.fused_inplace_qknorm_rope", case(D=128, S=90_000, H=24, dtype=B), "in place: 2109 MiB"),
    ("sglang.qknorm_then_rotary", case(**SIZES, dtype=B, **NEOX), "rotates interleaved pairs only"),
    ("sglang.qknorm_then_rotary", case(**SIZES, dtype=B, rotary_dim=64), "rotates whole heads only, not 64 of 128"),
    ("sglang.qknorm_complex_rope", case(**SIZES, dtype=B), "the case asks for norm"),
    (
        "sglang.qknorm_complex_rope",
        case(**SIZES, dtype=B, rounding="before_weight", per_batch=True),
        "one table for all batches",
    ),
    ("sglang.flux2_strided_qknorm_rope", case(**SIZES, dtype=B, queries_per_kv=2), "as many heads of k as of q"),
    ("sglang.table_qk_norm_rope", case(**SIZES, dtype=B, **NEOX), "works on one packed qkv"),
    ("vllm.fused_qk_norm_rope", ACROSS, "norms each head by itself"),
    ("vllm.fused_qk_norm_rope", case(**SIZES, dtype=B, rotary_dim=96, **NEOX), "partner's lane by XOR"),
    ("vllm.fused_qk_norm_rope", case(**SIZES, dtype=B, table="full"), "one cos and one sin per pair"),
    (
        "vllm.fused_qk_norm_rope",
        case(B=1, S=524_416, H=32, D=128, queries_per_kv=8, dtype=B, layout=L.SLICED, **NEOX),
        "32-bit offsets: 2,685,009,920 elements reach past 2,147,483,648",
    ),
    ("vllm.rms_norm_then_rotary", case(**SIZES, dtype=B, layout=L.TRANSPOSED), "heads of a token of a transposed"),
    ("flashinfer.rmsnorm_then_rope", case(D=2048, H=1, dtype=B), "D=2048: takes 64, 128, 256"),
    ("flashinfer.rmsnorm_then_rope", case(**SIZES, dtype=B, rotary_dim=24, **NEOX), "R=24 is no multiple of 16"),
    ("flashinfer.fused_qk_rmsnorm_rope", ACROSS, "it takes no cos and sin"),
    ("vllm_omni.fused_qk_norm_rope", case(**SIZES, dtype=B, **NEOX), "eagerly but for D=128 with R=96"),
]


@pytest.mark.parametrize(("candidate_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(candidate_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[candidate_id].guard(one, H200) or "")


@pytest.mark.parametrize("candidate_id", [i for i in BY_ID if i.startswith(("flashinfer.rms", "vllm."))])
def test_a_weight_of_another_dtype_is_not_read_as_nonsense(candidate_id: str) -> None:
    args = OP.inputs(CASES[0], SeededDraw(0, torch.float32, torch.device("cpu")))
    candidate = BY_ID[candidate_id]
    assert candidate.prepare is not None
    with pytest.raises(TypeError, match=r"weight is torch\.bfloat16 and the activation torch\.float32"):
        candidate.run(**(candidate.prepare(args) | {"q_weight": args["q_weight"].bfloat16()}))


# --- vllm-omni's layers without vllm ------------------------------------------------------------------------------


@pytest.mark.skipif(
    unpacked.folder(VLLM_OMNI) is None, reason=f"{VLLM_OMNI.requirement} is not unpacked: run `make providers`"
)
def test_the_real_layer_imports_with_the_stand_ins() -> None:
    script = (
        "from candidates._providers import unpacked, vllm, vllm_omni\n"
        "assert (vllm_omni.PROVIDER.missing() or '').startswith('needs an NVIDIA GPU'), vllm_omni.PROVIDER.missing()\n"
        "print(vllm_omni.function('fused_qk_norm_rope', 'fused_qk_norm_rope').__module__)\n"
        "import torch; print(torch.ops.vllm_omni.fused_qk_norm_rope.default._schema.name)\n"
        "print(unpacked.is_installed('vllm'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    module, operator, installed = done.stdout.splitlines()
    assert module == "vllm_omni.diffusion.layers.fused_qk_norm_rope"
    assert operator == "vllm_omni::fused_qk_norm_rope"
    assert installed == str(unpacked.is_installed("vllm"))
