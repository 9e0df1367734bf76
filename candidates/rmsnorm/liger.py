"""liger-kernel's RMSNorms in Triton.

`casting_mode="gemma"` with offset 0 is the authority's formula: everything in fp32, one rounding at the end. Its
default rounds before the weight is applied.
"""

from torch import Tensor

from candidates._providers import liger
from candidates._providers.guards import all_of, matrix, one_matrix, row_elements_at_most
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_guard = all_of(one_matrix, row_elements_at_most(65536))
_FP32_THROUGHOUT = "gemma"


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_rms_norm_forward_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., D), weight (D,); keeps 1/rms per row too, for a backward pass."""
    y: Tensor = liger.function("rms_norm", "rms_norm_forward")(matrix(x), weight, eps, 0.0, _FP32_THROUGHOUT, None)[0]
    return y.view(x.shape)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_fused_add_rms_norm_forward_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    context="residual_add",
)
def fused_add_rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
    """x and residual (..., D), weight (D,); returns the norm and the sum."""
    run = liger.function("fused_add_rms_norm", "fused_add_rms_norm_forward")
    y, summed, *_ = run(matrix(x), matrix(residual), weight, eps, 0.0, _FP32_THROUGHOUT)
    return y.view(x.shape), summed.view(x.shape)
