"""liger-kernel's LayerNorm in Triton. It insists on a weight and a bias and keeps mean and 1/sd for a backward pass."""

from torch import Tensor

from candidates._providers import liger
from candidates._providers.guards import all_of, matrix, one_matrix, row_elements_at_most
from candidates.layernorm.affine import in_float32
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=liger.PROVIDER,
    kernels=("_layer_norm_forward_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(one_matrix, row_elements_at_most(65536)),
    prepare=in_float32,
)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x (..., D), weight and bias (D,)."""
    y: Tensor = liger.function("layer_norm", "layer_norm_forward")(matrix(x), weight, bias, eps)[0]
    return y.view(x.shape)
