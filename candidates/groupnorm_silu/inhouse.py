"""Our own Triton kernels for GroupNorm+SiLU, as a candidate."""

from torch import Tensor

from candidates.groupnorm_silu.launch import groupnorm_silu
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="groupnorm_silu",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"groupnorm_silu_(flat|rows)_",),
    contract=Contract.TOLERANCE,
)
def triton_groupnorm_silu(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """Any layout, read and written as found: one read where x fits in the SMs' registers, two where it does not."""
    return groupnorm_silu(x, weight, bias, groups, eps)
