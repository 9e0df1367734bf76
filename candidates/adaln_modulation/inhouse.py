"""Our own Triton kernel for adaLN modulation and gate, as a candidate."""

from torch import Tensor

from candidates.adaln_modulation.launch import modulate
from harness.op import INHOUSE, candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=(r"adaln_modulation_tile",),
    contract=Contract.BIT_EXACT,
)
def triton_modulation(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """Every form, every table, any strides; rounds where eager PyTorch rounds."""
    return modulate(x, scale, shift, residual, index, scale_constant, upcast)
