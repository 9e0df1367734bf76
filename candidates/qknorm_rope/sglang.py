"""sglang's fused QK-norms + RoPEs: CUDA compiled on first use, in place or not, and Triton for one model each.

Its `fused_qk_norm_rope` for language models is not here: it works its angles out from a base frequency.
"""

import functools

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, dtypes, half_precision
from candidates.qknorm_rope import tables
from candidates.qknorm_rope.conventions import Pairs, Rounding, Shapes, Table
from candidates.qknorm_rope.tables import cached, packed_qkv, tokens
from harness.op import Args, Device, candidate
from harness.schema.case import Case, Dtype, Layout
from harness.schema.vocabulary import Contract, Kind

_JIT = "ops.diffusion.rope.qknorm_rope_jit"
_FUSED = (r"fused_qknorm_rope_(half_)?warp",)


def _lanes(case: Case, device: Device) -> str | None:
    of = Shapes.of(case)
    per_lane = of.head_dim // 32
    lanes, rest = divmod(of.rotary_dim, per_lane)
    if rest or (of.pairs is Pairs.NEOX and lanes % 2):
        return f"R={of.rotary_dim} does not end on a lane of {per_lane} elements"
    return None


_jit = all_of(half_precision, tables.per_head, tables.head_dims(64, 128, 256), tables.tokens_in_one_run, _lanes)


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=_FUSED,
    contract=Contract.TOLERANCE,
    guard=all_of(_jit, tables.in_place),
    mutates=("q", "k"),
    returns=("q", "k"),
    prepare=cached,
)
def fused_inplace_qknorm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> None:  # fmt: skip
    """q (B, S, H, D), k (B, S, KV, D) in place; cos the cache, sin the positions."""
    sglang.function(_JIT, "fused_inplace_qknorm_rope")(
        tokens(q), tokens(k), q_weight, k_weight, cos, sin, is_neox=pairs == Pairs.NEOX, eps=eps,
        round_norm_before_rope=rounding != Rounding.NONE, cache_has_full_width=table == Table.FULL,
    )  # fmt: skip


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=_FUSED,
    contract=Contract.TOLERANCE,
    guard=_jit,
    prepare=cached,
)
def fused_qknorm_rope_out_of_place(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q (B, S, H, D), k (B, S, KV, D); cos the cache, sin the positions."""
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    sglang.function(_JIT, "fused_qknorm_rope_out_of_place")(
        tokens(q), tokens(k), tokens(q_out), tokens(k_out), q_weight, k_weight, cos, sin,
        is_neox=pairs == Pairs.NEOX, eps=eps, round_norm_before_rope=rounding != Rounding.NONE,
        cache_has_full_width=table == Table.FULL,
    )  # fmt: skip
    return q_out, k_out


def _split_per_token(args: Args) -> Args:
    """cos and sin (tokens, R/2), a row for every token."""
    changed = cached(args, row_per_token=True)
    for group in tables.GROUPS:
        if f"{group}cos" in args:
            cos, sin = changed[f"{group}cos"].chunk(2, dim=-1)
            changed[f"{group}cos"], changed[f"{group}sin"] = cos.contiguous(), sin.contiguous()
    return changed


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=(r"fused_qknorm_(half_)?warp", "_rotary_embedding_kernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(
        half_precision,
        tables.per_head,
        tables.head_dims(64, 128, 256),
        tables.heads_in_one_run,
        tables.pairs_are(Pairs.INTERLEAVED),
        tables.rotates_whole_heads,
        tables.one_value_per_pair,
        tables.reaches_less_than(1 << 31),
        tables.in_place,
    ),
    mutates=("q", "k"),
    prepare=_split_per_token,
)
def qknorm_then_rotary(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Norms of q and k in place in one launch (CUDA), then a rotation each (Triton); cos, sin (tokens, R/2)."""
    sglang.function("ops.layernorm.norm", "fused_inplace_qknorm")(tokens(q), tokens(k), q_weight, k_weight, eps)
    rotate = sglang.function("ops.diffusion.rope.rotary_triton", "apply_rotary_embedding")
    turned = (rotate(tokens(x), cos, sin).view(x.shape) for x in (q, k))
    return next(turned), next(turned)


def _complex_tables(args: Args) -> Args:
    """cos becomes the complex table (S, R/2); sin stays."""
    changed = dict(args)
    for group in tables.GROUPS:
        if f"{group}cos" in args:
            cos, sin = (
                tables.one_per_pair(args[f"{group}{name}"], args["pairs"], args["table"]) for name in ("cos", "sin")
            )
            flat = (values.reshape(-1, values.shape[-1]).float() for values in (cos, sin))
            changed[f"{group}cos"] = torch.complex(*flat)
    return changed


def _rounds_before_the_weight(case: Case, device: Device) -> str | None:
    if case.params["rounding"] == Rounding.BEFORE_WEIGHT:
        return None
    return f"rounds before the weight and after it, the case asks for {case.params['rounding']}"


_complex = all_of(
    tables.per_head,
    tables.head_dims(128),
    tables.pairs_are(Pairs.INTERLEAVED),
    tables.rotates_whole_heads,
    tables.one_value_per_pair,
    tables.shares_tables,
    _rounds_before_the_weight,
)


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_qknorm_complex_rope_onepass_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, _complex, tables.reaches_less_than(1 << 31)),
    prepare=_complex_tables,
)
def qknorm_complex_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A launch each for q and k, copied where they are not contiguous, which is timed; cos the complex table."""
    run = sglang.function("ops.diffusion.rope.qknorm_complex_rope_triton", "qknorm_complex_rope")
    q_out, k_out = run(q, q_weight, cos, eps), run(k, k_weight, cos, eps)
    return q_out, k_out


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("qknorm_complex_rope",),
    contract=Contract.TOLERANCE,
    guard=all_of(dtypes(Dtype.BF16), _complex, tables.heads_in_one_run),
    prepare=_complex_tables,
)
def qknorm_complex_rope_cuda(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A launch each for q and k; cos the complex table."""
    run = sglang.function("ops.diffusion.rope.qknorm_complex_rope_jit", "qknorm_complex_rope_cuda")
    q_out, k_out = run(q, q_weight, cos, eps), run(k, k_weight, cos, eps)
    return q_out, k_out


def _as_many_kv_heads(case: Case, device: Device) -> str | None:
    return None if case.params["queries_per_kv"] == 1 else "takes as many heads of k as of q"


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_flux2_strided_qknorm_rope_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        dtypes(Dtype.BF16),
        tables.per_head,
        tables.head_dims(128),
        tables.heads_in_one_run,
        tables.pairs_are(Pairs.INTERLEAVED),
        tables.rotates_whole_heads,
        tables.one_value_per_pair,
        tables.shares_tables,
        _as_many_kv_heads,
        tables.reaches_less_than(1 << 31),
    ),
    prepare=functools.partial(cached, dtype=torch.float32),
)
def flux2_strided_qknorm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One launch for q and k of equal shape and strides; cos the fp32 cache, its rows in order of the tokens."""
    run = sglang.function("ops.diffusion.rope.flux2_qknorm_rope_triton", "flux2_strided_qknorm_rope")
    q_out, k_out = run(q, k, q_weight, k_weight, cos, eps)
    return q_out, k_out


def _packed(case: Case, device: Device) -> str | None:
    return None if case.layout is Layout.SLICED else "works on one packed qkv, the case's q and k are apart"


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_table_qk_norm_rope_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        dtypes(Dtype.BF16),
        _packed,
        tables.per_head,
        tables.head_dims(64, 128, 256),
        tables.pairs_are(Pairs.NEOX),
        tables.rotates_whole_heads,
        tables.one_value_per_pair,
        tables.in_place,
    ),
    mutates=("q", "k"),
    returns=("q", "k"),
    prepare=cached,
)
def table_qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> None:  # fmt: skip
    """q and k in place, as views of one packed qkv; cos the cache, sin the positions."""
    qkv = packed_qkv(q, k)
    if qkv is None:
        raise ValueError("q and k are not views of one packed qkv")
    run = sglang.function("ops.attention.table_qk_norm_rope", "table_qk_norm_rope_")
    run(qkv, sin, q_weight, k_weight, cos, q.shape[2], k.shape[2], q.shape[3], eps)
