"""flashinfer's rotary embedding in CUDA from a cache of cos and sin, compiled on first use; takes q and k together.

Positions index the cache's rows, so tables that differ by batch are one cache of all batches' rows.
"""

import torch
from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import all_of, dense_rows, half_precision, spans_less_than
from candidates.rope_wan.problem import rotary_dim_of
from candidates.rope_wan.tables import Pairs
from candidates.rope_wan.upstream import cache_of, one_token_axis, same_for_heads, token_rows, tokens
from harness.op import Args, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_HEAD_DIMS = (64, 128, 256, 512)
_VECTOR = 8


def _head_dims(case: Case, device: Device) -> str | None:
    D, rotary_dim = case.dims["D"], rotary_dim_of(case)
    if D not in _HEAD_DIMS:
        return f"D={D}: its rotary kernel takes {', '.join(map(str, _HEAD_DIMS))}"
    vector = max(_VECTOR, D // 32)
    return None if rotary_dim % (2 * vector) == 0 else f"a rotary dim of {rotary_dim} is no multiple of {2 * vector}"


def _two_heads(case: Case, device: Device) -> str | None:
    return None if case.dims["H"] > 1 else "takes q and k; a tensor of one head cannot be both"


_guard = all_of(half_precision, _head_dims, same_for_heads, dense_rows, spans_less_than(1 << 32))


def _prepare(args: Args) -> Args:
    """An fp32 cache and the positions of all tokens in it; interleaved, the kernel reads a few floats past each row."""
    cache, positions = cache_of(args, torch.float32, spare_row=True)
    tensors: Args = {name: args[name] for name in ("x", "q", "k") if name in args}
    return {**tensors, "cache": cache, "positions": positions, "interleaved": args["pairs"] == Pairs.INTERLEAVED}


@candidate(
    op="rope_wan",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("BatchQKApplyRotaryPosIdsCosSinCache",),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, one_token_axis, _two_heads),
    prepare=_prepare,
)
def apply_rope_with_cos_sin_cache(x: Tensor, cache: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x (B, S, H, D), its last head given as k and the others as q; cache (rows, R) in fp32."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    heads_in, heads_out = tokens(x), tokens(y)
    flashinfer.function("rope", "_apply_rope_pos_ids_cos_sin_cache")(
        q=heads_in[:, :-1],
        k=heads_in[:, -1:],
        q_rope=heads_out[:, :-1],
        k_rope=heads_out[:, -1:],
        cos_sin_cache=cache,
        pos_ids=positions,
        interleave=interleaved,
    )
    return y


def _both(q: Tensor, k: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(k.shape, dtype=k.dtype, device=k.device)


@candidate(
    op="rope_wan",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("BatchQKApplyRotaryPosIdsCosSinCache",),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, token_rows),
    context="qk",
    prepare=_prepare,
    fake=_both,
)
def apply_rope_with_cos_sin_cache_qk(
    q: Tensor, k: Tensor, cache: Tensor, positions: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """q (B, S, H, D) and k (B, S, H2, D) as (tokens, heads * D)."""
    count, D = positions.shape[0], q.shape[-1]
    run = flashinfer.function("rope", "apply_rope_with_cos_sin_cache")
    out_q, out_k = run(positions, q.view(count, -1), k.view(count, -1), D, cache, not interleaved)
    return out_q.view(q.shape), out_k.view(k.shape)
