"""flashinfer's fused DiT LayerNorms in CUDA, compiled on first use: made for Wan 2.2 5B, so D = 3072 alone.

Scale, shift and gate are read per token out of Wan's packed `temb.chunk(6)`: rows of 6 * D. The packing is not timed,
since such a model has them so; the strides are. Biases of the modulations are optional in its signature, and the kernel
reads through the null pointer that stands for one left out: zeros are passed.
"""

import functools

import torch
from torch import Tensor

from candidates._providers import flashinfer
from candidates._providers.guards import all_of, contiguous, dtypes, spans_less_than
from candidates.adalayernorm.guards import formulas, modulations
from candidates.adalayernorm.inhouse import residual_fake
from candidates.adalayernorm.op import VLLM_OMNI
from harness.op import Args, Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind


def _wan_5b(case: Case, device: Device) -> str | None:
    return None if case.dims["D"] == 3072 else f"D={case.dims['D']}: takes 3072 only"


_guard = all_of(
    dtypes(Dtype.BF16),
    contiguous,
    _wan_5b,
    modulations("token"),
    formulas(VLLM_OMNI, why="takes bfloat16 modulations only"),
    spans_less_than(1 << 31),
)


def _packed_by_six(args: Args) -> Args:
    names = [name for name in ("scale", "shift", "gate") if name in args]
    b, s, d = args["x"].shape
    packed = torch.zeros((b, s, 6, d), dtype=args["scale"].dtype, device=args["x"].device)
    for i, name in enumerate(names):
        packed[:, :, i] = args[name]
    return args | {name: packed[:, :, i] for i, name in enumerate(names)}


@functools.cache
def _no_bias(device: torch.device) -> Tensor:
    return torch.zeros(3072, dtype=torch.float32, device=device)


@candidate(
    op="adalayernorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("meta_fused_layernorm",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    prepare=_packed_by_six,
)
def fused_dit_layernorm_scale_shift(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x (B, S, 3072). It also writes x itself as its residual output, one more tensor of x's size."""
    run = flashinfer.function("norm", "fused_dit_residual_layernorm_scale_shift")
    y: Tensor = run(x, scale, shift, scale_bias=_no_bias(x.device), shift_bias=_no_bias(x.device), epsilon=eps)[1]
    return y


@candidate(
    op="adalayernorm",
    kind=Kind.CUDA,
    provider=flashinfer.PROVIDER,
    kernels=("meta_fused_layernorm",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    prepare=_packed_by_six,
    context="residual_gate",
    fake=residual_fake,
)
def fused_dit_gate_residual_layernorm_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """x and residual (B, S, 3072)."""
    run = flashinfer.function("norm", "fused_dit_gate_residual_layernorm_scale_shift")
    biases = dict.fromkeys(("gate_bias", "scale_bias", "shift_bias"), _no_bias(x.device))
    h, y = run(x, residual, gate, scale, shift, **biases, epsilon=eps)
    return y, h
