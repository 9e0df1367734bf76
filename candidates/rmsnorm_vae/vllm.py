"""vllm's RMSNorm over rows in CUDA, from its compiled library."""

import torch
from torch import Tensor

from candidates._providers import vllm
from candidates._providers.guards import all_of, require_same_dtype, spans_less_than
from candidates.rmsnorm_vae.rows import channels_last, from_rows, no_bias, rms_eps, to_rows
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="rmsnorm_vae",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"vllm::rms_norm_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(channels_last, no_bias, spans_less_than(1 << 31)),
)
def rms_norm(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x (N, C, ...), channels-last in and out: one block per position."""
    require_same_dtype(x, gamma)
    rows = to_rows(x)
    y = torch.empty_like(rows)
    vllm.operator("rms_norm")(y, rows, gamma.view(-1), rms_eps(eps, x.shape[1]))
    return from_rows(y, x)
