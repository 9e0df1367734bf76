"""AdaLayerNorm in plain PyTorch with both moments from one pass and one rounding, for torch.compile."""

from torch import Tensor

from candidates.adalayernorm.op import modulate
from candidates.layernorm.rewrite import normalised
from harness.op import TORCH, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="adalayernorm",
    kind=Kind.REWRITE,
    provider=TORCH,
    kernels=(),
    contract=Contract.TOLERANCE,
    name="shifted_moments",
)
def shifted_moments(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x (B, S, D); the modulation in fp32 for both formulas."""
    y = normalised(x, eps)
    return modulate(y, scale.to(y.dtype), shift.to(y.dtype)).to(x.dtype)
