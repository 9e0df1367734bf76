"""sgl_kernel's fused residual add + RMSNorm behind the process group's all-reduce."""

from torch import Tensor

from candidates._providers import sgl_kernel
from candidates._providers.guards import all_of, contiguous, half_precision, require_same_dtype, spans_less_than
from candidates.allreduce_rmsnorm.collective import all_reduce_in_place
from candidates.allreduce_rmsnorm.guards import adds_residual
from candidates.rmsnorm.rounding import ONCE
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_ENABLE_PDL = True


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=sgl_kernel.PROVIDER,
    kernels=(r"norm::FusedAddRMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, contiguous, adds_residual, spans_less_than(1 << 32)),
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def nccl_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> None:
    """x and residual (T, D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    all_reduce_in_place(x, group)
    if x.numel():
        sgl_kernel.operator("fused_add_rmsnorm")(x, residual, weight, eps, _ENABLE_PDL)
