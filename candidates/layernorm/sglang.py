"""sglang's LayerNorms in Triton.

`_norm_forward` is private there; called with `is_rms_norm=False` it is the wrapper of `_layer_norm_fwd_1pass_kernel`
that the RFC's note 1 asks for. It also writes each row's mean and 1/sd, and sums in two passes over registers.
"""

from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, matrix, one_matrix, row_bytes_at_most, spans_less_than
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_NORM_TRITON = "ops.diffusion.norm.norm_triton"
_guard = all_of(one_matrix, row_bytes_at_most(1 << 16), spans_less_than(1 << 31))


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layer_norm_fwd_1pass_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
)
def layer_norm_fn(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (..., D), weight and bias (D,) of any dtype. Tuned once per D."""
    run = sglang.function(_NORM_TRITON, "_norm_forward")
    y: Tensor = run(matrix(x), weight, bias, eps=eps, is_rms_norm=False)
    return y.view(x.shape)


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_norm_infer_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
)
def norm_infer(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x (..., D), weight and bias (D,) of any dtype. Copies a sliced x to contiguous; that copy is timed."""
    y: Tensor = sglang.function(_NORM_TRITON, "norm_infer")(matrix(x), weight, bias, eps, is_rms_norm=False)
    return y.view(x.shape)
