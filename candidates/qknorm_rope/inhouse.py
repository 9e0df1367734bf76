"""Our own Triton kernels for QK-norm + RoPE as candidates: alone, as (B, H, S, D), and into a joint sequence."""

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Shapes
from candidates.qknorm_rope.launch import MAX_ROW_ELEMENTS, qknorm_rope, qknorm_rope_into
from harness.op import INHOUSE, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_KERNELS = (r"qknorm_rope_(heads|tokens)",)


def _fits_registers(case: Case, device: Device) -> str | None:
    of = Shapes.of(case)
    row = of.head_dim * (of.heads if case.params["across_heads"] else 1)
    return None if row <= MAX_ROW_ELEMENTS else f"a norm over {row} elements is more than {MAX_ROW_ELEMENTS}"


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=_KERNELS,
    contract=Contract.TOLERANCE,
    guard=_fits_registers,
)
def triton_qknorm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """One launch for q and k, any strides, fp32 until the one rounding at the end whatever `rounding` asks."""
    return qknorm_rope(q, k, q_weight, k_weight, cos, sin, eps, across_heads, pairs, table)


def _empty_bhsd(x: Tensor) -> Tensor:
    batch, tokens, heads, head_dim = x.shape
    return torch.empty((batch, heads, tokens, head_dim), dtype=x.dtype, device=x.device)


def _bhsd_fake(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty_bhsd(q), _empty_bhsd(k)


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=_KERNELS,
    contract=Contract.TOLERANCE,
    guard=_fits_registers,
    context="bhsd",
    fake=_bhsd_fake,
)
def triton_qknorm_rope_bhsd(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Written as (B, H, S, D) at once."""
    q_out, k_out = _empty_bhsd(q), _empty_bhsd(k)
    outputs = (q_out.transpose(1, 2), k_out.transpose(1, 2))
    qknorm_rope_into(*outputs, q, k, q_weight, k_weight, cos, sin, eps, across_heads, pairs, table)
    return q_out, k_out


def _empty_joint(x: Tensor, text: Tensor) -> Tensor:
    batch, tokens, heads, head_dim = x.shape
    return torch.empty((batch, text.shape[1] + tokens, heads, head_dim), dtype=x.dtype, device=x.device)


def _joint_fake(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str, text_q: Tensor, text_k: Tensor,
    text_q_weight: Tensor, text_k_weight: Tensor, text_cos: Tensor, text_sin: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty_joint(q, text_q), _empty_joint(k, text_k)


@candidate(
    op="qknorm_rope",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=_KERNELS,
    contract=Contract.TOLERANCE,
    guard=_fits_registers,
    context="joint",
    fake=_joint_fake,
)
def triton_qknorm_rope_joint(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str, text_q: Tensor, text_k: Tensor,
    text_q_weight: Tensor, text_k_weight: Tensor, text_cos: Tensor, text_sin: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Text and image written to their places in the joint sequence: two launches, no cat."""
    joint_q, joint_k = _empty_joint(q, text_q), _empty_joint(k, text_k)
    tokens = text_q.shape[1]
    conventions = (eps, across_heads, pairs, table)
    text = (text_q, text_k, text_q_weight, text_k_weight, text_cos, text_sin)
    qknorm_rope_into(joint_q[:, :tokens], joint_k[:, :tokens], *text, *conventions)
    image = (q, k, q_weight, k_weight, cos, sin)
    qknorm_rope_into(joint_q[:, tokens:], joint_k[:, tokens:], *image, *conventions)
    return joint_q, joint_k
