"""vllm's rotary embedding in CUDA, from its compiled library: in place, from a cache of cos and sin."""

from torch import Tensor

from candidates._providers import vllm
from candidates._providers.guards import all_of, dense_rows
from candidates.rope_wan.tables import Pairs
from candidates.rope_wan.upstream import cache_of, same_for_heads, token_rows
from harness.op import Args, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_FRESH_COPIES_LIMIT = 1 << 30


def _fresh_copies(case: Case, device: Device) -> str | None:
    """In place, every launch that is timed needs an input of its own."""
    if case.numel < _FRESH_COPIES_LIMIT:
        return None
    return f"in place: {case.numel:,} elements are too many to keep fresh ones for every launch"


_guard = all_of(same_for_heads, dense_rows, token_rows, _fresh_copies)


def _prepare(args: Args) -> Args:
    cache, positions = cache_of(args)
    tensors: Args = {name: args[name] for name in ("x", "q", "k") if name in args}
    return {**tensors, "cache": cache, "positions": positions, "is_neox": args["pairs"] == Pairs.HALVES}


@candidate(
    op="rope_wan",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=("vllm::rotary_embedding_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    prepare=_prepare,
    mutates=("x",),
    returns=("x",),
)
def rotary_embedding(x: Tensor, cache: Tensor, positions: Tensor, is_neox: bool) -> None:
    """x (B, S, H, D) as (tokens, H * D), in place; cache (rows, R) in the tables' dtype."""
    if x.numel() == 0:
        return  # it divides by the number of tokens on the host
    query = x.view(positions.shape[0], -1)
    vllm.operator("rotary_embedding")(positions, query, None, x.shape[-1], cache, is_neox)


@candidate(
    op="rope_wan",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=("vllm::rotary_embedding_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    context="qk",
    prepare=_prepare,
    mutates=("q", "k"),
    returns=("q", "k"),
)
def rotary_embedding_qk(q: Tensor, k: Tensor, cache: Tensor, positions: Tensor, is_neox: bool) -> None:
    """q (B, S, H, D) and k (B, S, H2, D) as (tokens, heads * D), in place, in one launch."""
    if q.numel() == 0:
        return  # it divides by the number of tokens on the host
    query, key = (y.view(positions.shape[0], -1) for y in (q, k))
    vllm.operator("rotary_embedding")(positions, query, key, q.shape[-1], cache, is_neox)
