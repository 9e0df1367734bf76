"""sglang's RMSNorms: four in Triton and three in CUDA that are compiled on first use.

They round once, but for `rmsnorm_cast_before_weight`, `jit_rmsnorm_hf` and, where it is asked to,
`jit_fused_add_rmsnorm`.
"""

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import (
    all_of,
    contiguous,
    dtypes,
    half_precision,
    matrix,
    row_bytes_at_most,
    row_elements_at_most,
    spans_less_than,
)
from candidates.rmsnorm.guards import one_matrix, rounds_before_weight, weighted
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_NORM_TRITON = "ops.diffusion.norm.norm_triton"
_NORM_JIT = "ops.layernorm.norm"
_CAST_BEFORE_WEIGHT = "rmsnorm_cast_before_weight_bitexact"
_row_kernel = all_of(one_matrix, row_bytes_at_most(1 << 16), spans_less_than(1 << 31))


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layer_norm_fwd_1pass_kernel",),
    contract=Contract.TOLERANCE,
    guard=_row_kernel,
)
def rms_norm_fn(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,). The kernel came from flash-attention; tuned once per D."""
    y: Tensor = sglang.function(_NORM_TRITON, "rms_norm_fn")(matrix(x), weight, None, eps=eps)
    return y.view(x.shape)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layer_norm_fwd_1pass_kernel",),
    contract=Contract.TOLERANCE,
    guard=_row_kernel,
    context="residual_add",
    name="rms_norm_fn_residual",
)
def rms_norm_fn_residual(
    x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x and residual (..., D), weight (D,); normalises the fp32 sum and returns it rounded beside the norm."""
    run = sglang.function(_NORM_TRITON, "rms_norm_fn")
    y, summed = run(matrix(x), weight, None, residual=matrix(residual), eps=eps)
    return y.view(x.shape), summed.view(x.shape)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_norm_infer_kernel",),
    contract=Contract.TOLERANCE,
    guard=_row_kernel,
)
def norm_infer(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,). Copies a sliced x to contiguous; that copy is timed."""
    y: Tensor = sglang.function(_NORM_TRITON, "norm_infer")(matrix(x), weight, None, eps, is_rms_norm=True)
    return y.view(x.shape)


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_rms_norm_tiled_onepass",),
    contract=Contract.TOLERANCE,
    guard=all_of(one_matrix, weighted, row_elements_at_most(128), spans_less_than(1 << 31)),
)
def triton_one_pass_rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,). Compiles anew for every number of rows; copies a sliced x, and that copy is timed."""
    run = sglang.function("ops.diffusion.norm.rmsnorm_onepass_triton", "triton_one_pass_rms_norm")
    y: Tensor = run(matrix(x), weight, eps)
    return y.view(x.shape)


def _its_eps(case: Case, device: Device) -> str | None:
    eps = case.params["eps"]
    return None if eps == 1e-6 else f"its kernel has eps 1e-6 written into it, the case has {eps}"


@candidate(
    op="rmsnorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_ordered_norm_kernel|_normalize_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(dtypes(Dtype.BF16), rounds_before_weight, contiguous, _its_eps),
)
def rmsnorm_cast_before_weight(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,), bf16. One kernel for D 128 and 3072; three, one of them aten's mean, for the others.

    Compiles anew for every number of rows.
    """
    if x.numel() == 0:
        return torch.empty_like(x)  # it refuses these
    run = sglang.function("ops.diffusion.norm.rmsnorm_cast_before_weight_bitexact", _CAST_BEFORE_WEIGHT)
    y: Tensor = run(x, weight)
    return y


def _jit_widths(case: Case, device: Device) -> str | None:
    D = case.shape[-1]
    if D in (64, 128, 256) or (256 < D <= 8192 and D % 256 == 0) or (8192 < D <= 16384 and D % 512 == 0):
        return None
    return f"D={D}: takes 64, 128, multiples of 256 up to 8192 and of 512 up to 16384"


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("rmsnorm_(warp|cta)",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, one_matrix, _jit_widths),
)
def jit_rmsnorm(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,) of x's dtype. One build per D and dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sglang.function(_NORM_JIT, "rmsnorm")(matrix(x), weight, matrix(y), eps)
    return y


def _hf_widths(case: Case, device: Device) -> str | None:
    D = case.shape[-1]
    if D % 512 == 0 or (D < 512 and D % 32 == 0):
        return None
    return f"D={D}: takes multiples of 32 below 512 and of 512 from there on"


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("rmsnorm_hf_(warp|scalar)_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, rounds_before_weight, one_matrix, _hf_widths),
)
def jit_rmsnorm_hf(x: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> Tensor:
    """x (..., D), weight (D,) of x's dtype; rounds before the weight, as transformers does. One build per D."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sglang.function("ops.layernorm.rmsnorm_hf", "rmsnorm_hf")(matrix(x), weight, eps, matrix(y))
    return y


def _jit_fused_widths(case: Case, device: Device) -> str | None:
    D = case.shape[-1]
    return None if D % 16 == 0 and D <= 8192 else f"D={D}: takes multiples of 16 up to 8192"


@candidate(
    op="rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("fused_add_rmsnorm_reg_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, weighted, contiguous, _jit_fused_widths),
    context="residual_add",
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def jit_fused_add_rmsnorm(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str = ONCE) -> None:
    """x and residual (..., D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    run = sglang.function(_NORM_JIT, "fused_add_rmsnorm")
    run(matrix(x), matrix(residual), weight, eps, cast_x_before_out_mul=rounding == BEFORE_WEIGHT)
