"""PyTorch's fused multiply-add, `torch.addcmul`, called eagerly: one kernel and one rounding."""

import torch
from torch import Tensor

from candidates._providers.guards import all_of, contiguous, on_gpu
from candidates.adaln_modulation.guards import PER_BATCH, forms, one_dtype, tables
from candidates.adaln_modulation.op import Form, Per
from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="adaln_modulation",
    kind=Kind.CUDA,
    provider=TORCH,
    kernels=("addcmul",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        on_gpu, forms(Form.SCALE_SHIFT, Form.GATE), tables(*PER_BATCH, Per.TOKEN), contiguous, one_dtype
    ),
)  # fmt: skip
def addcmul(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x (B, S, D), tables that broadcast against it; 1 is added to the scale in a kernel of its own."""
    factor = scale[:, None] if scale.ndim == 2 else scale
    offset = residual if shift is None else shift[:, None] if shift.ndim == 2 else shift
    assert offset is not None
    return torch.addcmul(offset, x, scale_constant + factor if scale_constant else factor)
