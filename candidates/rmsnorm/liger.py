"""liger-kernel's RMSNorms in Triton.

Its casting mode `gemma` with offset 0 rounds once, at the end; its default, `llama`, before the weight is applied.
"""

from torch import Tensor

from candidates._providers import liger
from candidates._providers.guards import all_of, matrix, row_elements_at_most
from candidates.rmsnorm.guards import one_matrix, weighted
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_guard = all_of(one_matrix, row_elements_at_most(65536))
_CASTING = {ONCE: "gemma", BEFORE_WEIGHT: "llama"}


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_rms_norm_forward_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
)
def rms_norm(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,); keeps 1/rms per row too, for a backward pass."""
    y: Tensor = liger.function("rms_norm", "rms_norm_forward")(matrix(x), weight, eps, 0.0, _CASTING[rounding], None)[0]
    return y.view(x.shape)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_fused_add_rms_norm_forward_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, weighted),
    context="residual_add",
)
def fused_add_rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x and residual (..., D), weight (D,); returns the norm and the sum."""
    run = liger.function("fused_add_rms_norm", "fused_add_rms_norm_forward")
    y, summed, *_ = run(matrix(x), matrix(residual), weight, eps, 0.0, _CASTING[rounding])
    return y.view(x.shape), summed.view(x.shape)
