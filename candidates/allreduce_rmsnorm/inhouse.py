"""Our own kernels as candidates: fused over peer buffers, and our RMSNorm behind the process group's all-reduce."""

from torch import Tensor

from candidates._providers.guards import all_of, contiguous, dense_rows, row_elements_at_most
from candidates.allreduce_rmsnorm.collective import all_reduce_in_place
from candidates.allreduce_rmsnorm.guards import small_enough_for_one_shot
from candidates.allreduce_rmsnorm.launch import MAX_WIDTH, fused
from candidates.rmsnorm.launch import residual_rmsnorm, rmsnorm
from candidates.rmsnorm.rounding import ONCE
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind

_rows = all_of(dense_rows, row_elements_at_most(MAX_WIDTH))


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("allreduce_rmsnorm_one_shot",),
    contract=Contract.TOLERANCE,
    guard=all_of(_rows, small_enough_for_one_shot),
    equal_ranks=True,
)
def triton_one_shot(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """One kernel over peer buffers; every rank sums everything."""
    return fused(x, weight, eps, group, residual, rounding, two_shot=False)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("allreduce_rmsnorm_two_shot",),
    contract=Contract.TOLERANCE,
    guard=_rows,
    equal_ranks=True,
)
def triton_two_shot(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """One kernel over peer buffers; every rank sums its share and sends the sums to all."""
    return fused(x, weight, eps, group, residual, rounding, two_shot=True)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"rmsnorm_(tile|long)",),
    contract=Contract.TOLERANCE,
    guard=contiguous,
    mutates=("x",),
)
def nccl_triton_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """The process group's all-reduce (NCCL on GPUs) in place, then residual add and norm in one kernel of ours."""
    all_reduce_in_place(x, group)
    if residual is None:
        return rmsnorm(x, weight, eps, rounding), x.clone()
    return residual_rmsnorm(x, weight, eps, residual, rounding)
