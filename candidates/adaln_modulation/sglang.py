"""sglang's kernels for modulation and gate: scale and shift in Triton and CUDA, gates, tables by index."""

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, contiguous, dtypes, half_precision, spans_less_than
from candidates.adaln_modulation.guards import (
    PER_BATCH,
    forms,
    fp32_arithmetic,
    one_dtype,
    per_batch,
    stepwise,
    tables,
    tables_span_less_than,
    widths_of,
)
from candidates.adaln_modulation.op import LAYERNORM_EPS, Form, Per
from harness.op import Device, candidate
from harness.schema.case import Case, Dtype
from harness.schema.vocabulary import Contract, Kind

_MODULATE = "ops.diffusion.modulate"
_offsets = all_of(spans_less_than(1 << 31), tables_span_less_than(1 << 31))


def _scale_constant_is_one(case: Case, device: Device) -> str | None:
    return None if case.params["scale_constant"] == 1 else "adds 1 to the scale"


def _spread_over_tokens(table: Tensor, x: Tensor) -> Tensor:
    """(B, F, 1, D) as (B, S, D): a copy."""
    return table.expand(-1, -1, x.shape[1] // table.shape[1], -1).flatten(1, 2)


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("fuse_scale_shift_kernel_blc_opt|_fused_scale_shift_4d_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(
        forms(Form.SCALE_SHIFT, Form.GATE), tables(*PER_BATCH, Per.FRAME, Per.TOKEN), contiguous, stepwise, _offsets
    ),
)
def fuse_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x (B, S, D) contiguous; a gate is a scale with the residual for a shift.

    Where a table is per frame the kernel wants a shift per token: one per frame is copied to its tokens, timed.
    """
    offset = shift if residual is None else residual
    assert offset is not None
    if offset.ndim == 4 or scale.ndim == 4:
        offset = _spread_over_tokens(offset, x) if offset.ndim == 4 else offset.expand(x.shape)
        scale = scale if scale.ndim == 4 else scale.view(scale.shape[0], 1, 1, -1)
    run = sglang.function(f"{_MODULATE}.scale_shift_triton", "fuse_scale_shift_kernel")
    y: Tensor = run(x, scale, offset, float(scale_constant))
    return y


@candidate(
    op="adaln_modulation",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("modulate_scale_shift_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        half_precision, forms(Form.SCALE_SHIFT), tables(*PER_BATCH), contiguous, one_dtype, _scale_constant_is_one,
        widths_of(8, 1 << 30),
    ),
)  # fmt: skip
def modulate_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x (B, S, D), scale and shift (B, D) contiguous, all of one 16-bit dtype; chunks of several batches are copied."""
    assert shift is not None
    run = sglang.function(f"{_MODULATE}.modulate_scale_shift_jit", "modulate_scale_shift_cuda")
    y: Tensor = run(x, per_batch(scale).contiguous(), per_batch(shift).contiguous())
    return y


@candidate(
    op="adaln_modulation",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("residual_gate_add_(vec|broadcast|scalar)_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        half_precision, forms(Form.GATE), tables(*PER_BATCH, Per.TOKEN), contiguous, one_dtype
    ),
)  # fmt: skip
def residual_gate_add(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x, residual (B, S, D) contiguous, gate (B, 1, D) or (B, S, D), one 16-bit dtype; chunks per token are copied."""
    gate = scale[:, None] if scale.ndim == 2 else scale.contiguous()
    run = sglang.function("kda_kernels.residual_gate_add_jit", "residual_gate_add_cuda")
    y: Tensor = run(residual, x, gate)
    return y


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_residual_gate_fp32_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        half_precision, forms(Form.GATE), tables(*PER_BATCH), contiguous, fp32_arithmetic, spans_less_than(1 << 31)
    ),
)  # fmt: skip
def residual_gate_fp32(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x, residual (B, S, D) contiguous, gate (B, 1, D) in fp32 or x's dtype; one rounding. Compiles for every size."""
    gate = scale[:, None] if scale.ndim == 2 else scale
    with torch.no_grad():
        y: Tensor = sglang.function(f"{_MODULATE}.residual_gate_fp32", "residual_gate_fp32")(residual, x, gate)
    return y


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_indexed_scale_shift_(bf16|fp32)_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        dtypes(Dtype.BF16), forms(Form.SCALE_SHIFT), tables(Per.INDEX), contiguous, stepwise, _scale_constant_is_one,
        spans_less_than(1 << 31),
    ),
    mutates=("x",),
    returns=("x",),
)  # fmt: skip
def indexed_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> None:  # fmt: skip
    """x (T, D) in place, tables (rows, D) in bf16 or fp32, index (T,)."""
    kind = "bf16" if scale.dtype is torch.bfloat16 else "fp32"
    run = sglang.function(f"{_MODULATE}.indexed_modulation_triton", f"indexed_scale_shift_{kind}_")
    run(x, shift, scale, index)


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_indexed_gate_(bf16|fp32)_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        dtypes(Dtype.BF16), forms(Form.GATE), tables(Per.INDEX), contiguous, stepwise, spans_less_than(1 << 31)
    ),
)  # fmt: skip
def indexed_gate(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x, residual (T, D), gates (rows, D) in bf16 or fp32, index (T,)."""
    kind = "bf16" if scale.dtype is torch.bfloat16 else "fp32"
    run = sglang.function(f"{_MODULATE}.indexed_modulation_triton", f"indexed_gate_{kind}")
    y: Tensor = run(residual, scale, x, index)
    return y


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=sglang.PROVIDER,
    kernels=("_layernorm_modulate_kernel",),
    contract=Contract.BIT_EXACT,
    guard=all_of(
        dtypes(Dtype.BF16), forms(Form.SCALE_SHIFT), tables(*PER_BATCH), contiguous, one_dtype,
        _scale_constant_is_one, widths_of(4, 8192),
    ),
    context="layernorm",
)  # fmt: skip
def fused_layernorm_modulate(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """LayerNorm and modulation in one: x (B, S, D), tables (B, D), all bf16."""
    assert shift is not None
    run = sglang.function("kda_kernels.layernorm_modulate_triton", "fused_layernorm_modulate_raw")
    y: Tensor = run(x, per_batch(scale), per_batch(shift), LAYERNORM_EPS)
    return y
