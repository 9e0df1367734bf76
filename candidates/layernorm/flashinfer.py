"""flashinfer's LayerNorm in CUDA, compiled on first use: bf16 activations, fp32 weights."""

from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import all_of, contiguous, dtypes, matrix, spans_less_than
from candidates.layernorm.affine import in_float32
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind


def _pairs(case: Case, device: Device) -> str | None:
    return f"D={case.dims['D']}: takes even widths" if case.dims["D"] % 2 else None


@candidate(
    op="layernorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("generalLayerNorm",),
    contract=Contract.TOLERANCE,
    # It checks that the last dim is dense and then walks all rows as if they were: a slice would be silently wrong.
    guard=all_of(dtypes(Dtype.BF16), contiguous, _pairs, spans_less_than(1 << 32)),
    prepare=in_float32,
)
def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x (..., D) as (rows, D), weight and bias (D,) in fp32: one block per row, which it keeps in shared memory."""
    y: Tensor = flashinfer.function("norm", "layernorm")(matrix(x), weight, bias, eps)
    return y.view(x.shape)
