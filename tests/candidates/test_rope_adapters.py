"""Adapters to upstream's rotary kernels, on a CPU: upstream's functions are replaced by PyTorch on their own terms.

For every case a guard admits, the adapter must meet those terms without a copy of x and hand back the right result.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from candidates._providers import flash_attn as flash_attn_provider
from candidates._providers import flashinfer as flashinfer_provider
from candidates._providers import liger as liger_provider
from candidates._providers import sglang as sglang_provider
from candidates._providers import vllm as vllm_provider
from candidates.rope_wan import flash_attn, flashinfer, liger, sglang, vllm
from candidates.rope_wan.op import OP, native
from harness.measure.inputs import SeededDraw
from harness.op import Candidate, Device
from harness.schema.case import Case, Dtype, Layout
from tests.candidates.rope_cases import FORMS, rope_case

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
CANDIDATES = [
    value
    for module in (flash_attn, flashinfer, liger, sglang, vllm)
    for value in vars(module).values()
    if isinstance(value, Candidate)
]
BY_ID = {candidate.id: candidate for candidate in CANDIDATES}


def label(value: Any) -> str | None:
    return value.id if isinstance(value, Candidate) else None


# --- upstream's terms -------------------------------------------------------------------------------------------


def turned(x: Tensor, cos: Tensor, sin: Tensor, pairs: str) -> Tensor:
    """x (B, S, H, D) with half-width tables (S, W) or (B, S, W)."""
    return native(x, cos, sin, "pair", pairs, "half")


def flash_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    assert cos.ndim == sin.ndim == 2
    assert cos.shape[0] >= x.shape[1]
    return turned(x, cos[: x.shape[1]], sin[: x.shape[1]], "interleaved" if interleaved else "halves")


def sglang_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Row of the tables by token modulo the tokens of x."""
    assert not interleaved
    tokens = x.shape[-3]
    flat = x.view(-1, *x.shape[-2:])
    rows = torch.arange(flat.shape[0]) % tokens
    return turned(flat[None], cos[rows], sin[rows], "interleaved").view(x.shape)


def sglang_complex(x: Tensor, rope: Tensor) -> Tensor:
    assert x.is_contiguous()
    assert rope.dtype is torch.complex64
    assert rope.shape == (x.shape[1], x.shape[3] // 2)
    return native(x, rope, None, "complex", "interleaved", "half")


def sglang_rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    assert x.is_contiguous()
    assert cos.is_contiguous()
    assert cos.shape[0] == x.shape[0] * x.shape[1]
    flat = native(x.view(1, -1, *x.shape[2:]), cos, sin, "rotate_half", "halves", "full")
    return flat.view(x.shape)


def sglang_ltx2(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    B, H, S, half = cos.shape
    assert x.is_contiguous()
    assert x.shape == (B, S, H * 2 * half)
    return turned(x.view(B, S, H, -1), cos, sin, "halves").view(x.shape)


def sglang_helios(q: Tensor, k: Tensor, freqs: Tensor) -> None:
    assert q.shape == k.shape
    assert freqs.shape == (q.shape[0], 2 * q.shape[2])
    cos, sin = freqs.chunk(2, dim=-1)
    for x in (q, k):
        assert x.is_contiguous()
        x.copy_(native(x[None], cos, sin, "pair", "interleaved", "full")[0])


def looked_up(x: Tensor, cache: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x (tokens, H, D)."""
    cos, sin = cache[positions].chunk(2, dim=-1)
    return turned(x[None], cos, sin, "interleaved" if interleaved else "halves")[0]


def flashinfer_views(
    q: Tensor, k: Tensor, q_rope: Tensor, k_rope: Tensor, cos_sin_cache: Tensor, pos_ids: Tensor, interleave: bool
) -> None:
    assert cos_sin_cache.dtype is torch.float32
    for x, out in ((q, q_rope), (k, k_rope)):
        assert x.shape[1] > 0
        assert x.stride(-1) == out.stride(-1) == 1
        out.copy_(looked_up(x, cos_sin_cache, pos_ids, interleave))


def flashinfer_matrices(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cache: Tensor, is_neox: bool
) -> tuple[Tensor, ...]:
    assert cache.dtype is torch.float32
    return tuple(
        looked_up(x.view(x.shape[0], -1, head_size), cache, positions, not is_neox).view(x.shape) for x in (query, key)
    )


def vllm_rotary(
    positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cache: Tensor, is_neox: bool
) -> None:
    assert positions.dtype is torch.int64
    for x in (query, key):
        if x is not None:
            heads = x.view(x.shape[0], -1, head_size)
            heads.copy_(looked_up(heads, cache, positions, not is_neox))


def liger_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    assert cos.ndim == 3
    for x in (q.transpose(1, 2), k.transpose(1, 2)):
        assert x.is_contiguous()
        x.copy_(native(x, cos, sin, "rotate_half", "halves", "full"))


ROPE = "sglang.ops.diffusion.rope"
UPSTREAM: dict[str, Callable[..., Any]] = {
    f"{ROPE}.rotary_triton.apply_rotary_embedding": sglang_rotary,
    f"{ROPE}.complex_rope_triton.fused_complex_rope": sglang_complex,
    f"{ROPE}.rope_rotate_half_bitexact.fused_rope_rotate_half_bitexact": sglang_rotate_half,
    f"{ROPE}.ltx2_rotary_triton.apply_ltx2_split_rotary_emb": sglang_ltx2,
    f"{ROPE}.helios_qk_rope_jit.fused_inplace_helios_qk_rope": sglang_helios,
    "flashinfer.rope._apply_rope_pos_ids_cos_sin_cache": flashinfer_views,
    "flashinfer.rope.apply_rope_with_cos_sin_cache": flashinfer_matrices,
    "liger.rope.rope_forward": liger_rope,
}


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (sglang_provider, flashinfer_provider, liger_provider):
        name = provider.PROVIDER.id
        monkeypatch.setattr(provider, "function", lambda module, function, p=name: UPSTREAM[f"{p}.{module}.{function}"])
    monkeypatch.setattr(flash_attn_provider, "rotary", lambda name: {"apply_rotary": flash_rotary}[name])
    monkeypatch.setattr(vllm_provider, "operator", lambda name: {"rotary_embedding": vllm_rotary}[name])


# --- every admitted case is computed right ----------------------------------------------------------------------

CASES = [rope_case(B=2, S=5, H=4, D=64, **form) for form in FORMS.values()]
CASES += [rope_case(B=1, S=5, H=4, D=64, layout=layout) for layout in Layout]
CASES += [rope_case(B=2, S=5, H=4, D=64, pairs="halves", positions="per_batch", layout=layout) for layout in Layout]
CASES += [rope_case(B=2, S=5, H=4, D=64, pairs=pairs, rotary_dim=32) for pairs in ("interleaved", "halves")]
CASES += [rope_case(B=2, S=5, H=8, D=64, heads_per_kv=4, pairs=pairs) for pairs in ("interleaved", "halves")]
CASES += [rope_case(B=1, S=5, H=1, D=2048, width="full", form="rotate_half", positions="per_batch")]


def as_measured(case: Case) -> Case:
    """As guards see it: bf16, with bf16 tables, which some insist on."""
    table = {} if case.params["form"] == "complex" else {"table_dtype": "bfloat16"}
    return case.model_copy(update={"dtype": Dtype.BF16, "params": case.params | table})


ADMITTED = [
    (candidate, case) for candidate in CANDIDATES for case in CASES if candidate.guard(as_measured(case), H200) is None
]


@pytest.mark.parametrize(("candidate", "case"), ADMITTED, ids=label)
def test_every_admitted_case_is_computed_right(candidate: Candidate, case: Case) -> None:
    context = OP.context(candidate.context) if candidate.context else None
    args = (context or OP).inputs(case, SeededDraw(3, torch.float32, torch.device("cpu")))
    expected = (context.compose(native) if context else native)(**args)
    before = {name: value.clone() for name, value in args.items() if isinstance(value, Tensor)}
    assert candidate.prepare is not None
    prepared = candidate.prepare(args)
    for name in {"x", "q", "k"} & args.keys():
        assert prepared[name] is args[name], f"prepare must leave {name} to the timed part"
    outputs = candidate.run(**prepared)
    for name in before.keys() - set(candidate.mutates):
        assert torch.equal(args[name], before[name]), name
    if candidate.returns:
        assert outputs is None
        outputs = tuple(args[name] for name in candidate.returns)
    outputs, expected = (value if isinstance(value, tuple) else (value,) for value in (outputs, expected))
    if not candidate.returns:
        fakes = (candidate.fake or OP.fake)(*prepared.values())
        fakes = fakes if isinstance(fakes, tuple) else (fakes,)
        assert [y.shape for y in outputs] == [y.shape for y in fakes]
    for output, right in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, right, rtol=1e-5, atol=1e-5)


def test_every_adapter_is_admitted_to_something() -> None:
    assert {candidate.id for candidate, _ in ADMITTED} == BY_ID.keys()


@pytest.mark.parametrize("candidate", CANDIDATES, ids=label)
def test_the_signature_makes_a_custom_op_of_what_prepare_gives(candidate: Candidate) -> None:
    case = next(case for admitted, case in ADMITTED if admitted is candidate)
    source = OP.context(candidate.context) if candidate.context else OP
    assert candidate.prepare is not None
    prepared = candidate.prepare(source.inputs(case, SeededDraw(0, torch.float32, torch.device("cpu"))))
    schema = torch.library.infer_schema(candidate.run, mutates_args=candidate.mutates)
    assert set(re.findall(r"(\w+)(?=[,)])", schema.split("->")[0])) == prepared.keys()


def test_tables_of_one_batch_alone_are_not_enough() -> None:
    """What vllm-omni PR 4043 and a flattened cos with a 4-D x did: every sequence turned like the first."""
    candidate = BY_ID["sglang.apply_rotary_embedding"]
    args = OP.inputs(rope_case(positions="per_batch"), SeededDraw(0, torch.float32, torch.device("cpu")))
    flattened = {"cos": args["cos"].flatten(0, 1), "sin": args["sin"].flatten(0, 1)}
    naive = sglang_rotary(args["x"], **flattened)
    assert not torch.allclose(naive[1], native(**args)[1], atol=1e-2)
    assert candidate.prepare is not None
    torch.testing.assert_close(candidate.run(**candidate.prepare(args)), native(**args), rtol=1e-5, atol=1e-5)


# --- guards give reasons ----------------------------------------------------------------------------------------

BIG = {"B": 1, "S": 75600, "H": 40, "D": 128}
REFUSED = [
    ("flash_attn.apply_rotary", rope_case(D=512), "D=512 is more than 256"),
    ("flash_attn.apply_rotary", rope_case(B=6, S=75600, H=40, D=128), "32-bit offsets: 2,322,432,000 elements"),
    ("flash_attn.apply_rotary", rope_case(S=300_000, H=1), "600000 tokens are past CUDA's limit"),
    ("flash_attn.apply_rotary", rope_case(positions="per_head"), "one row of tables for all heads"),
    ("flash_attn.apply_rotary", rope_case(layout=Layout.TRANSPOSED), "no (tokens, heads, D) tensor without a copy"),
    ("sglang.apply_rotary_embedding", rope_case(pairs="halves"), "rotates adjacent pairs only"),
    ("sglang.apply_rotary_embedding", rope_case(rotary_dim=8), "whole heads only, the rotary dim is 8 of 16"),
    ("sglang.fused_complex_rope", rope_case(layout=Layout.SLICED), "contiguous tensors only"),
    ("sglang.rope_rotate_half_bitexact", rope_case(pairs="halves", dtype=Dtype.BF16), "bfloat16 tables only"),
    ("sglang.rope_rotate_half_bitexact", rope_case(), "rotates halves only"),
    ("sglang.apply_ltx2_split_rotary_emb", rope_case(pairs="halves"), "takes bfloat16 only"),
    ("sglang.jit_helios_qk_rope", rope_case(heads_per_kv=4), "q has 4 times k's heads"),
    ("flashinfer.apply_rope_with_cos_sin_cache", rope_case(dtype=Dtype.BF16, D=80), "D=80: its rotary kernel takes 64"),
    ("flashinfer.apply_rope_with_cos_sin_cache", rope_case(dtype=Dtype.BF16, D=64, H=1), "cannot be both"),
    ("flashinfer.apply_rope_with_cos_sin_cache", rope_case(dtype=Dtype.BF16, D=64, rotary_dim=24), "no multiple of 16"),
    ("vllm.rotary_embedding", rope_case(**(BIG | {"B": 3})), "in place: 1,161,216,000 elements"),
    ("vllm.rotary_embedding", rope_case(layout=Layout.TRANSPOSED), "no (tokens, heads * D) matrix"),
    ("liger.rope_forward", rope_case(), "rotates halves only"),
]


@pytest.mark.parametrize(("candidate_id", "one", "reason"), REFUSED)
def test_what_is_refused_and_why(candidate_id: str, one: Case, reason: str) -> None:
    assert reason in (BY_ID[candidate_id].guard(one, H200) or "")


def test_the_tables_that_positions_index() -> None:
    """Shared tables stay one row a position; tables of each batch become one long cache."""
    for positions, rows in (("shared", 6), ("per_batch", 12)):
        case = rope_case(positions=positions, D=64)
        args = OP.inputs(case, SeededDraw(0, torch.float32, torch.device("cpu")))
        prepare = BY_ID["vllm.rotary_embedding"].prepare
        assert prepare is not None
        prepared = prepare(args)
        assert prepared["cache"].shape == (rows, 64)
        assert prepared["positions"].shape == (12,)
        assert int(prepared["positions"].max()) == rows - 1


def test_a_kernel_that_reads_past_a_row_gets_a_row_more() -> None:
    case = rope_case(positions="shared", D=64)
    prepare = BY_ID["flashinfer.apply_rope_with_cos_sin_cache"].prepare
    assert prepare is not None
    prepared = prepare(OP.inputs(case, SeededDraw(0, torch.float32, torch.device("cpu"))))
    assert prepared["cache"].shape == (7, 64)
    assert int(prepared["positions"].max()) == 5


def test_no_tokens_never_reach_a_kernel_that_divides_by_their_number() -> None:
    nothing = torch.empty(0, 6, 2, 64)
    positions, cache = torch.empty(0, dtype=torch.int64), torch.zeros(6, 64)
    BY_ID["vllm.rotary_embedding"].run(x=nothing, cache=cache, positions=positions, is_neox=True)
    BY_ID["vllm.rotary_embedding_qk"].run(q=nothing, k=nothing, cache=cache, positions=positions, is_neox=True)
