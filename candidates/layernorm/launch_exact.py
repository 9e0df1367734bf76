"""The bit-exact LayerNorm kernel on tensors. Imports only torch and Triton."""

from torch import Tensor

from candidates.layernorm.kernels.exact import layernorm_exact
from candidates.layernorm.rows import (
    Rows,
    Shared,
    addresses,
    affine,
    contiguous_like,
    is_empty,
    modulation,
    rows_of,
)

NARROWEST, WIDEST = 512, 8192
"""Below, some of torch's threads see no element; above, registers run out."""


def why_not_exact(width: int) -> str | None:
    """Why torch's order of summation is not reproduced for rows of this width, or None."""
    if width % 4 or not NARROWEST <= width <= WIDEST:
        return f"D={width}: reproduces torch's order for multiples of 4 from {NARROWEST} to {WIDEST}"
    return None


def make_plan(width: int, mode: str, residual: bool) -> int:
    """Warps of a row's program.

    Measured on an H200, µs behind another kernel, two warps / four: 32760 rows of 1536, modulated in bf16 51.0 / -, in
    fp32 52.5 / 53.2, with an affine part 52.9 / 52.3, after a residual 100.2 / 99.0; 32760 rows of 5120 183.4 / 165.2;
    rows of 3072, 4096 of them 16.9 / 15.8, after a residual 28.4 / 28.7, and 128 of them 5.06 / 4.97. Two warps have
    16-byte loads and two barriers instead of five, four need fewer registers.
    """
    return 4 if width > 2048 or mode == "affine" or residual else 2


def _launch(
    x: Tensor, out: Tensor, rows: Rows, eps: float, warps: int | None, *, mode: str, round_steps: bool = False,
    mul: Shared | None = None, add: Shared | None = None,
    residual: Tensor | None = None, gate: Shared | None = None, h: Tensor | None = None,
) -> None:  # fmt: skip
    if is_empty(x):
        return
    if reason := why_not_exact(rows.width):
        raise ValueError(reason)
    # a tensor that is not there is never touched; x stands in for it
    nothing = Shared(x, 0, 0, rows.tokens)
    mul_, add_, gate_ = mul or nothing, add or nothing, gate or nothing
    even, where = addresses(rows, rows if residual is None else rows_of(residual), (gate_, mul_, add_))
    per_token = mul is not None and mul.tokens == 1 and rows.tokens > 1
    warps = warps or make_plan(rows.width, mode, residual is not None)
    layernorm_exact[(rows.count,)](
        x, x if residual is None else residual, gate_.tensor, mul_.tensor, add_.tensor, out, x if h is None else h,
        eps, *where,
        D=rows.width, WARPS=warps, MODE=mode, ROUND=round_steps, RESIDUAL=residual is not None, EVEN=even,
        POLICY="evict_first" if per_token else "evict_last", num_warps=warps, enable_fp_fusion=False,
    )  # fmt: skip


def exact_layernorm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, warps: int | None = None
) -> Tensor:
    """The bits of `layer_norm(x.float(), ...).to(x.dtype)` on a GPU; weight and bias (D,), both or neither."""
    rows, out = rows_of(x), contiguous_like(x)
    if weight is None or bias is None:
        if weight is not bias:
            raise ValueError("weight and bias must both be given or both be None")
        _launch(x, out, rows, eps, warps, mode="plain")
    else:
        _launch(x, out, rows, eps, warps, mode="affine", mul=affine(weight, rows), add=affine(bias, rows))
    return out


def exact_modulated_layernorm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, round_steps: bool, warps: int | None = None
) -> Tensor:
    """The bits of eager LN(x) * (1 + scale) + shift, each step rounded to x's dtype (`round_steps`) or to fp32."""
    rows, out = rows_of(x), contiguous_like(x)
    _launch(
        x, out, rows, eps, warps, mode="modulate", round_steps=round_steps,
        mul=modulation(scale, rows), add=modulation(shift, rows),
    )  # fmt: skip
    return out


def exact_residual_modulated_layernorm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, round_steps: bool, residual: Tensor, gate: Tensor,
    warps: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """h = residual + x * gate, then `exact_modulated_layernorm` of h; returns (that, h), both contiguous."""
    rows, out, h = rows_of(x), contiguous_like(x), contiguous_like(x)
    _launch(
        x, out, rows, eps, warps, mode="modulate", round_steps=round_steps,
        mul=modulation(scale, rows), add=modulation(shift, rows),
        residual=residual, gate=modulation(gate, rows), h=h,
    )  # fmt: skip
    return out, h
