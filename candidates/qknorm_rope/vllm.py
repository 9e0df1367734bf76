"""vllm's QK-norm + RoPE in CUDA, from its compiled library: fused in place on a packed qkv, and as three launches."""

import torch
from torch import Tensor

from candidates._providers import vllm
from candidates._providers.guards import all_of, half_precision, require_same_dtype
from candidates.qknorm_rope import tables
from candidates.qknorm_rope.conventions import Pairs, Shapes
from candidates.qknorm_rope.tables import cached, packed_qkv, tokens
from harness.op import Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind


def _halves_swap_by_xor(case: Case, device: Device) -> str | None:
    of = Shapes.of(case)
    if of.pairs is Pairs.INTERLEAVED:
        return None
    half_lanes, rest = divmod(of.rotary_dim // 2, of.head_dim // 32)
    if rest == 0 and half_lanes & (half_lanes - 1) == 0:
        return None
    return f"finds the partner's lane by XOR: half of R={of.rotary_dim} is no power of two of lanes"


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"fusedQKNormRopeKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        half_precision,
        tables.per_head,
        tables.head_dims(64, 128, 256),
        tables.one_value_per_pair,
        _halves_swap_by_xor,
        tables.reaches_less_than(1 << 31),
        tables.in_place,
    ),
    mutates=("q", "k"),
    returns=("q", "k"),
    prepare=cached,
)
def fused_qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> None:  # fmt: skip
    """In place; cos the cache, sin the positions. q and k that are apart are packed and unpacked, which is timed."""
    require_same_dtype(q, q_weight)
    if q.numel() == 0:
        return
    heads, kv_heads, head_dim = q.shape[2], k.shape[2], q.shape[3]
    packed = packed_qkv(q, k)
    qkv = torch.cat((q.flatten(2), k.flatten(2)), dim=-1).flatten(0, 1) if packed is None else packed
    v_heads = qkv.shape[1] // head_dim - heads - kv_heads
    vllm.operator("fused_qk_norm_rope")(
        qkv, heads, kv_heads, v_heads, head_dim, eps, q_weight, k_weight, cos, pairs == Pairs.NEOX, sin
    )
    if packed is None:
        new_q, new_k = qkv.split((heads * head_dim, kv_heads * head_dim), dim=-1)
        q.copy_(new_q.reshape(q.shape))
        k.copy_(new_k.reshape(k.shape))


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"vllm::rms_norm_kernel", r"vllm::rotary_embedding_kernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(tables.heads_in_one_run, tables.one_value_per_pair, tables.reaches_less_than(1 << 32)),
    prepare=cached,
)
def rms_norm_then_rotary(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A norm each, then one rotation of both in place of the normed; cos the cache, sin the positions."""
    require_same_dtype(q, q_weight)
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    if q.numel() == 0:
        return q_out, k_out
    for out, x, weight in ((q_out, q, q_weight), (k_out, k, k_weight)):
        rows = (out.flatten(2), x.flatten(2)) if across_heads else (out, x)
        vllm.operator("rms_norm")(*rows, weight, eps)
    vllm.operator("rotary_embedding")(sin, tokens(q_out), tokens(k_out), q.shape[3], cos, pairs == Pairs.NEOX)
    return q_out, k_out
