"""sglang's kernels that compute AdaLayerNorm, in Triton: bit-exact ones, a pair of kernels, and a selecting one."""

import functools

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, contiguous, dtypes, matrix, row_bytes_at_most, spans_less_than
from candidates.adalayernorm.guards import formulas, modulations, widths_of
from candidates.adalayernorm.inhouse import residual_fake
from candidates.adalayernorm.op import VLLM_OMNI, WAN
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_KDA = "kda_kernels.layernorm_modulate_triton"
_MODULATE = "ops.diffusion.modulate.scale_shift_triton"
_RESIDUAL = "ops.diffusion.norm.scale_residual_norm_scale_shift_triton"
_offsets = spans_less_than(1 << 31)
_exact = all_of(dtypes(Dtype.BF16), contiguous, modulations("batch-2d", "batch"), widths_of(4, 8192))


def _rows(m: Tensor) -> Tensor:
    """(B, D) or (B, 1, D) as (B, D)."""
    return m.view(m.shape[0], m.shape[-1])


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layernorm_modulate_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(_exact, formulas(VLLM_OMNI)),
)
def fused_layernorm_modulate(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x (B, S, D), scale and shift (B, D), all bf16: the function below sglang's own custom op, its `_raw` form."""
    y: Tensor = sglang.function(_KDA, "fused_layernorm_modulate_raw")(x, _rows(scale), _rows(shift), eps)
    return y


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layernorm_modulate_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(_exact, formulas(WAN)),
)
def fused_fp32_layernorm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x (B, S, D) bf16, scale and shift (B, D) fp32. Raises RuntimeError when sglang declines the tensors."""
    with torch.no_grad():
        y: Tensor | None = sglang.function(_KDA, "try_fused_fp32_layernorm_bf16")(x, _rows(scale), _rows(shift), eps)
    if y is None:
        raise RuntimeError("sglang's try_fused_fp32_layernorm_bf16 declines these tensors")
    return y


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_norm_infer_kernel", "fuse_scale_shift_kernel_blc_opt|_fused_scale_shift_4d_kernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(
        contiguous,
        # for a scale per frame it reads the shift per token, whatever its shape
        modulations("batch-2d", "batch", "token", "frame-token"),
        formulas(VLLM_OMNI, why="the norm is rounded between the two kernels"),
        row_bytes_at_most(1 << 16),
        _offsets,
    ),
)
def norm_then_scale_shift(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Two kernels, the norm written and read again between them: what the RFC's adaLN candidate does."""
    norm = sglang.function("ops.diffusion.norm.norm_triton", "norm_infer")
    y = norm(matrix(x), None, None, eps, is_rms_norm=False).view(x.shape)
    modulated: Tensor = sglang.function(_MODULATE, "fuse_scale_shift_kernel")(y, scale, shift)
    return modulated


@functools.cache
def _always_first(batches: int, tokens: int, device: torch.device) -> Tensor:
    return torch.zeros((batches, tokens), dtype=torch.int32, device=device)


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_fused_layernorm_scale_shift_gate_select01_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(contiguous, modulations("batch-2d", "batch"), row_bytes_at_most(1 << 16), _offsets),
)
def select01(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Selects one of two modulations per token (here always the first) and also writes the gate to every token.

    That second output is as large as the first; it is written here too (the scale serves as gate), and thrown away.
    """
    run = sglang.function(_MODULATE, "fuse_layernorm_scale_shift_gate_select01_kernel")
    first = _rows(scale), _rows(shift), _rows(scale)
    y: Tensor = run(x, None, None, *first, *first, _always_first(*x.shape[:2], x.device), eps)[0]
    return y


def _one_batch(case: Case, device: Device) -> str | None:
    return None if case.dims["B"] == 1 else f"takes one batch, the case has {case.dims['B']}"


@candidate(
    op="adalayernorm",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_scale_residual_norm_scale_shift_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        dtypes(Dtype.BF16, Dtype.FP16), contiguous, _one_batch, modulations("batch-2d", "batch"),
        widths_of(1, 8192), _offsets,
    ),
    context="residual_gate",
    fake=residual_fake,
)  # fmt: skip
def triton_residual_norm_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    """sglang sends only XPU tensors here; the kernel itself runs on any GPU."""
    run = sglang.function(_RESIDUAL, "fused_scale_residual_norm_scale_shift_triton")
    y, h = run(
        residual=residual, x=x, gate=gate.view(1, 1, -1), shift=shift, scale=scale, weight=None, bias=None, eps=eps
    )
    return y, h
