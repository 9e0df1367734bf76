"""sglang's AdaLayerNorm kernels in the CuTe DSL, where nvidia-cutlass-dsl is installed."""

from torch import Tensor

from candidates._providers import sglang, sglang_cutedsl
from candidates._providers.guards import all_of, contiguous
from candidates.adalayernorm.guards import modulations, widths_of
from candidates.adalayernorm.inhouse import residual_fake
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind

_CUTEDSL = "ops.diffusion.norm.scale_residual_norm_cutedsl"
_guard = all_of(contiguous, modulations("batch-2d", "batch", "frame", "frame-token", "token"), widths_of(256, 8192))


@candidate(
    op="adalayernorm",
    kind=Kind.CUDA,
    provider=sglang_cutedsl.PROVIDER,
    kernels=("ScaleResidualNormScaleShift",),
    contract=Contract.TOLERANCE,
    guard=_guard,
)
def fused_norm_scale_shift(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x (B, S, D); scale and shift of any granularity and dtype. Sums in x's dtype's chunks, statistics in fp32."""
    y: Tensor = sglang.function(_CUTEDSL, "fused_norm_scale_shift")(x, None, None, scale, shift, "layer", eps)
    return y


@candidate(
    op="adalayernorm",
    kind=Kind.CUDA,
    provider=sglang_cutedsl.PROVIDER,
    kernels=("ScaleResidualNormScaleShift",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    context="residual_gate",
    fake=residual_fake,
)
def fused_scale_residual_norm_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """The same of residual + x * gate, returned too."""
    run = sglang.function(_CUTEDSL, "fused_scale_residual_norm_scale_shift")
    y, h = run(residual, x, gate, None, None, scale, shift, "layer", eps)
    return y, h
