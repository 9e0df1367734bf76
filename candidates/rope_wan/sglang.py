"""sglang's rotary embeddings in Triton, and Helios' in CUDA, which is compiled on first use.

`apply_rotary_embedding` takes the row of a 4-D x's token modulo the sequence: tables that differ by batch go with x as
one long sequence, not with their batches alone flattened, which gives every batch the rows of the first.
"""

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, contiguous, dense_rows, dtypes, spans_less_than
from candidates.rope_wan.tables import Width, halved, rows
from candidates.rope_wan.upstream import (
    as_many_kv_heads,
    halves,
    interleaved,
    one_token_axis,
    same_for_heads,
    tokens,
    whole_heads,
)
from harness.op import Args, Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_ROPE = "ops.diffusion.rope"
_int32 = spans_less_than(1 << 31)


def _like_x(x: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(x)


def _half(args: Args) -> tuple[Tensor, Tensor]:
    return halved(args["cos"], args["sin"], args["pairs"], args["width"])


def _rows_of(table: Tensor) -> Tensor:
    """(S, W), or (B * S, W) of a table that differs by batch."""
    return rows(table, 1)


def _half_rows(args: Args) -> Args:
    cos, sin = map(_rows_of, _half(args))
    return {"x": args["x"], "cos": cos, "sin": sin}


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_rotary_embedding_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(interleaved, whole_heads, same_for_heads, dense_rows, one_token_axis, _int32),
    prepare=_half_rows,
    fake=_like_x,
)
def apply_rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, S, H, D), tables (S, D/2) or (B * S, D/2). Its `interleaved` only says how wide the tables are."""
    run = sglang.function(f"{_ROPE}.rotary_triton", "apply_rotary_embedding")
    y: Tensor = run(x if cos.shape[0] == x.shape[1] else tokens(x), cos, sin)
    return y.view(x.shape)


def _complex_table(args: Args) -> Args:
    cos, sin = map(_rows_of, _half(args))
    return {"x": args["x"], "rope": torch.complex(cos.float(), sin.float())}


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_complex_rope_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(interleaved, whole_heads, same_for_heads, contiguous, _int32),
    prepare=_complex_table,
)
def fused_complex_rope(x: Tensor, rope: Tensor) -> Tensor:
    """x (B, S, H, D), rope (S, D/2) or (B * S, D/2) complex64; rounds as aten's complex product does on this GPU."""
    run = sglang.function(f"{_ROPE}.complex_rope_triton", "fused_complex_rope")
    y: Tensor = run(x.view(x.shape) if rope.shape[0] == x.shape[1] else tokens(x)[None], rope)
    return y.view(x.shape)


def _bf16_tables(case: Case, device: Device) -> str | None:
    table = case.params["table_dtype"]
    return None if table == Dtype.BF16 else f"takes bfloat16 tables only, they are {table}"


def _full_rows(args: Args) -> Args:
    """(B * S, R) tables in bf16."""
    batch = args["x"].shape[0]
    cos, sin = args["cos"], args["sin"]
    if args["width"] == Width.HALF:
        cos, sin = (torch.cat((table, table), dim=-1) for table in (cos, sin))
    return {"x": args["x"], "cos": rows(cos, batch), "sin": rows(sin, batch)}


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_rope_rotate_half_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(halves, same_for_heads, dtypes(Dtype.BF16), _bf16_tables, contiguous),
    prepare=_full_rows,
)
def rope_rotate_half_bitexact(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, S, H, D), tables (B * S, R), all bf16: rounds each product and the sum as aten does."""
    run = sglang.function(f"{_ROPE}.rope_rotate_half_bitexact", "fused_rope_rotate_half_bitexact")
    y: Tensor = run(x.view(x.shape), cos, sin)
    return y


def _head_tables(args: Args) -> Args:
    """(B, H, S, D/2) tables: views that repeat what batches and heads share."""
    B, S, H, _ = args["x"].shape
    cos, sin = _half(args)
    if cos.ndim < 4:
        cos, sin = (
            (table[None] if table.ndim == 2 else table).unsqueeze(1).expand(B, H, S, -1) for table in (cos, sin)
        )
    return {"x": args["x"], "cos": cos, "sin": sin}


@candidate(
    op="rope_wan",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_ltx2_split_rotary_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(halves, whole_heads, dtypes(Dtype.BF16), contiguous, _int32),
    prepare=_head_tables,
)
def apply_ltx2_split_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, S, H, D) as (B, S, H * D), tables (B, H, S, D/2) of any strides; rounds the product with cos to bf16.

    Compiles anew for every sequence length.
    """
    run = sglang.function(f"{_ROPE}.ltx2_rotary_triton", "apply_ltx2_split_rotary_emb")
    y: Tensor = run(x.view(*x.shape[:2], -1), cos, sin)
    return y.view(x.shape)


def _helios_table(args: Args) -> Args:
    """(B * S, 2 * D) in fp32: cos, then sin, each value twice."""
    cos, sin = (rows(table, args["q"].shape[0]).float() for table in _half(args))
    return {"q": args["q"], "k": args["k"], "freqs": torch.cat((cos, sin), dim=-1).repeat_interleave(2, dim=-1)}


@candidate(
    op="rope_wan",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("helios_qk_rope_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(interleaved, whole_heads, same_for_heads, as_many_kv_heads, contiguous, spans_less_than(1 << 31)),
    context="qk",
    prepare=_helios_table,
    mutates=("q", "k"),
    returns=("q", "k"),
)
def jit_helios_qk_rope(q: Tensor, k: Tensor, freqs: Tensor) -> None:
    """q and k (B, S, H, D) in place, freqs (B * S, 2 * D) in fp32."""
    sglang.function(f"{_ROPE}.helios_qk_rope_jit", "fused_inplace_helios_qk_rope")(tokens(q), tokens(k), freqs)
