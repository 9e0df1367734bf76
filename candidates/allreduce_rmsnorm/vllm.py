"""vllm's fused residual add + RMSNorm behind the process group's all-reduce.

Its custom all-reduce (`torch.ops._C_custom_ar`) is not in the library that loads without vllm; flashinfer carries the
same kernels, and `vllm_allreduce.py` takes them from there.
"""

from torch import Tensor

from candidates._providers import vllm
from candidates._providers.guards import all_of, contiguous, require_same_dtype, spans_less_than
from candidates.allreduce_rmsnorm.collective import all_reduce_in_place
from candidates.allreduce_rmsnorm.guards import adds_residual
from candidates.rmsnorm.rounding import ONCE
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=vllm.PROVIDER,
    kernels=(r"vllm::fused_add_rms_norm_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(contiguous, adds_residual, spans_less_than(1 << 32)),
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def nccl_fused_add_rms_norm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> None:
    """x and residual (T, D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    all_reduce_in_place(x, group)
    if x.numel():
        vllm.operator("fused_add_rms_norm")(x, residual, weight, eps)
