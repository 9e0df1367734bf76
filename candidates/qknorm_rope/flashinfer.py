"""flashinfer's norms and RoPE in CUDA, compiled on first use; and its fused kernel, which no case can use."""

import functools

import torch
from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import all_of, half_precision, require_same_dtype
from candidates.qknorm_rope import tables
from candidates.qknorm_rope.conventions import Pairs, Shapes
from candidates.qknorm_rope.tables import cached, tokens
from harness.op import Device, candidate
from harness.schema.case import Case, Layout
from harness.schema.vocabulary import Contract, Kind

_VECTOR = 8
"""Elements of a head that one thread rotates."""


def _whole_vectors(case: Case, device: Device) -> str | None:
    of = Shapes.of(case)
    wanted = _VECTOR * (2 if of.pairs is Pairs.NEOX else 1)
    return None if of.rotary_dim % wanted == 0 else f"R={of.rotary_dim} is no multiple of {wanted}"


def _rows_of_the_norm(case: Case, device: Device) -> str | None:
    if case.params["across_heads"] and case.layout is Layout.TRANSPOSED:
        return "the heads of a token of a transposed tensor are apart"
    return None


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=(r"norm::(QK)?RMSNormKernel", r"BatchQKApplyRotaryPosIdsCosSinCache"),
    contract=Contract.TOLERANCE,
    guard=all_of(
        half_precision,
        tables.head_dims(64, 128, 256),
        tables.tokens_in_one_run,
        tables.one_value_per_pair,
        _whole_vectors,
        _rows_of_the_norm,
        tables.reaches_less_than(1 << 32),
    ),
    # it reads four values past the last of an interleaved table's row, so past the table at the last row
    prepare=functools.partial(cached, dtype=torch.float32, spare_row=True),
)
def rmsnorm_then_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A norm each, then one rotation of both; cos the fp32 cache, sin the positions."""
    require_same_dtype(q, q_weight)
    normed = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rows = (tokens(x), tokens(y))
        x_rows, y_rows = (row.flatten(1) for row in rows) if across_heads else rows
        flashinfer.function("norm", "rmsnorm")(x_rows, weight, eps, out=y_rows)
        normed.append(tokens(y).flatten(1))
    rotate = flashinfer.function("rope", "apply_rope_with_cos_sin_cache")
    q_out, k_out = rotate(sin, *normed, q.shape[3], cos, is_neox=pairs == Pairs.NEOX)
    return q_out.view(q.shape), k_out.view(k.shape)


def _own_angles(case: Case, device: Device) -> str | None:
    return "works its angles out from a frame, height and width grid: it takes no cos and sin"


@candidate(
    op="qknorm_rope",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("fused_qk_rmsnorm_rope",),
    contract=Contract.TOLERANCE,
    guard=_own_angles,
)
def fused_qk_rmsnorm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Listed so that reports say why it is not compared."""
    raise NotImplementedError("it takes no cos and sin")
