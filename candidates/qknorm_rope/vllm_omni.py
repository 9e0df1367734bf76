"""vllm-omni's own QK-norm + RoPE in Triton, with which Boogu-Image, MiniMax-H3 and Qwen-Image run it."""

import functools

from torch import Tensor

from candidates._providers import vllm_omni
from candidates._providers.guards import all_of, dtypes
from candidates.qknorm_rope import tables
from candidates.qknorm_rope.conventions import Pairs, Shapes
from candidates.qknorm_rope.tables import cached, tokens
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind


def _widths(case: Case, device: Device) -> str | None:
    of = Shapes.of(case)
    if of.pairs is Pairs.INTERLEAVED:
        return None if of.head_dim <= 256 else f"D={of.head_dim} is more than 256"
    if (of.head_dim, of.rotary_dim) == (128, 96):
        return None
    return f"runs half-split pairs eagerly but for D=128 with R=96, the case has {of.head_dim} with {of.rotary_dim}"


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=vllm_omni.PROVIDER,
    kernels=(r"_(qk|rms)_norm_rope_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(dtypes(Dtype.BF16), tables.per_head, tables.tokens_in_one_run, tables.one_value_per_pair, _widths),
    prepare=functools.partial(cached, row_per_token=True),
)
def fused_qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One launch for interleaved pairs, two for half-split ones; cos the cache with a row for every token."""
    run = vllm_omni.function("fused_qk_norm_rope", "fused_qk_norm_rope")
    q_out, k_out = run(
        tokens(q), tokens(k), q_weight, k_weight, cos, eps, interleaved=pairs == Pairs.INTERLEAVED
    )  # fmt: skip
    return q_out.view(q.shape), k_out.view(k.shape)
