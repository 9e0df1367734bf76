"""Our own Triton kernels for GroupNorm+SiLU, as candidates."""

from torch import Tensor

from candidates.groupnorm_silu.launch import groupnorm_silu
from candidates.groupnorm_silu.op import PAD
from candidates.groupnorm_silu.padded import groupnorm_silu_padded, padded_like
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


def _padded_fake(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    return padded_like(x)


@candidate(
    op="groupnorm_silu",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"groupnorm_silu_padded_apply",),
    contract=Contract.TOLERANCE,
    context=PAD,
    fake=_padded_fake,
)
def triton_groupnorm_silu_pad(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """The convolution's input, channels-last from any layout; x is read twice."""
    return groupnorm_silu_padded(x, weight, bias, groups, eps)
