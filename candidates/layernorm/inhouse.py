"""Our own Triton kernels for LayerNorm as candidates, alone and with the modulation that follows it."""

from torch import Tensor

from candidates._providers.guards import all_of, on_gpu, row_elements_at_most
from candidates.layernorm.launch import WIDEST, layernorm, modulated_layernorm
from candidates.layernorm.launch_exact import exact_layernorm, exact_modulated_layernorm, why_not_exact
from candidates.layernorm.op import fake
from harness.op import INHOUSE, Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind


def torch_cuda_order(case: Case, device: Device) -> str | None:
    """Guard of bit-exact kernels: torch's CUDA kernel is what they reproduce, at the widths where they can."""
    if reason := on_gpu(case, device):
        return f"{reason}: reproduces the order of torch's CUDA kernel, a CPU sums in another"
    return why_not_exact(case.dims["D"])


def no_affine(case: Case, device: Device) -> str | None:
    """Guard of kernels that modulate and have no affine part."""
    return None if case.params["weights"] == "none" else "has no affine part beside the modulation"


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=row_elements_at_most(WIDEST),
)
def triton_layernorm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Rows held in registers, any strides."""
    return layernorm(x, weight, bias, eps)


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_exact",),
    contract=Contract.BIT_EXACT,
    guard=torch_cuda_order,
)
def triton_layernorm_exact(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch's own order of summation, any strides."""
    return exact_layernorm(x, weight, bias, eps)


def _modulate_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, scale: Tensor, shift: Tensor
) -> Tensor:
    return fake(x, weight, bias, eps)


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_tile",),
    contract=Contract.TOLERANCE,
    guard=all_of(row_elements_at_most(WIDEST), no_affine),
    context="modulate",
    fake=_modulate_fake,
)
def triton_layernorm_modulate(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, scale: Tensor, shift: Tensor
) -> Tensor:
    """The norm and its modulation in one kernel, one rounding."""
    return modulated_layernorm(x, scale, shift, eps)


@candidate(
    op="layernorm",
    kind=Kind.TRITON,
    provider=INHOUSE,
    kernels=("layernorm_exact",),
    contract=Contract.BIT_EXACT,
    guard=all_of(torch_cuda_order, no_affine),
    context="modulate",
    fake=_modulate_fake,
)
def triton_layernorm_modulate_exact(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, scale: Tensor, shift: Tensor
) -> Tensor:
    """The norm and its modulation in one kernel, every rounding of the eager chain."""
    return exact_modulated_layernorm(x, scale, shift, eps, round_steps=True)
