"""LayerNorm on tensors: picks tile sizes and launches the tile kernel. Imports only torch and Triton."""

from dataclasses import dataclass

from torch import Tensor

from candidates.layernorm.kernels.tile import layernorm_tile
from candidates.layernorm.rows import (
    Rows,
    Shared,
    affine,
    contiguous_like,
    is_empty,
    modulation,
    overlaps_launches,
    rows_of,
)

WIDEST = 16384
"""Elements of a row that are held in registers; there is no kernel for longer ones."""


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel."""

    rows: int
    warps: int


def split_row(width: int) -> tuple[int, int]:
    """Largest power of two that is not above `width`, and the rest padded to a power of two (or 0)."""
    head = 1 << (width.bit_length() - 1)
    rest = width - head
    return head, 0 if rest == 0 else 1 << (rest - 1).bit_length()


def make_plan(width: int) -> Plan:
    """Rows per program and warps, from the row's width in elements."""
    head, tail = split_row(width)
    if head + tail <= 512:
        return Plan(rows=1 << (2048 // (head + tail)).bit_length() - 1, warps=4)
    # eight elements of the shorter piece per thread: head and tail then share a layout, and no exchange is needed
    return Plan(rows=1, warps=min(max((tail or head // 2) // 256, 1), 16))


def _launch(
    x: Tensor, out: Tensor, rows: Rows, eps: float, plan: Plan | None, *, one: float = 0.0,
    mul: Shared | None = None, add: Shared | None = None,
    residual: Tensor | None = None, gate: Shared | None = None, h: Tensor | None = None,
) -> None:  # fmt: skip
    if is_empty(x):
        return
    if rows.width > WIDEST:
        raise ValueError(f"rows of {rows.width} elements are longer than {WIDEST}")
    plan = plan or make_plan(rows.width)
    head, tail = split_row(rows.width)
    # a tensor that is not there is never touched; x stands in for it
    nothing = Shared(x, 0, 0, rows.tokens)
    mul_, add_, gate_ = mul or nothing, add or nothing, gate or nothing
    residual_strides = rows.strides if residual is None else rows_of(residual).strides
    pdl = overlaps_launches(x.device)
    per_token = mul is not None and mul.tokens == 1 and rows.tokens > 1
    layernorm_tile[(-(-rows.count // plan.rows),)](
        x, x if residual is None else residual, gate_.tensor, mul_.tensor, add_.tensor, out, x if h is None else h,
        eps, rows.count, rows.tokens, rows.width,
        *rows.strides, *residual_strides, *gate_.arguments, *mul_.arguments, *add_.arguments,
        ROWS=plan.rows, HEAD=head, TAIL=tail, ONE=one, AFFINE=mul is not None, RESIDUAL=residual is not None,
        POLICY="evict_first" if per_token else "evict_last", PDL=pdl, num_warps=plan.warps, launch_pdl=pdl,
    )  # fmt: skip


def layernorm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, plan: Plan | None = None) -> Tensor:
    """LayerNorm over the last dim of x (B, S, D) or (T, D), any strides; weight and bias (D,), both or neither."""
    rows, out = rows_of(x), contiguous_like(x)
    if weight is None or bias is None:
        if weight is not bias:
            raise ValueError("weight and bias must both be given or both be None")
        _launch(x, out, rows, eps, plan)
    else:
        _launch(x, out, rows, eps, plan, mul=affine(weight, rows), add=affine(bias, rows))
    return out


def modulated_layernorm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, plan: Plan | None = None) -> Tensor:
    """LN(x) * (1 + scale) + shift with one rounding; scale and shift as `rows.modulation` takes them, any dtype."""
    rows, out = rows_of(x), contiguous_like(x)
    _launch(x, out, rows, eps, plan, one=1.0, mul=modulation(scale, rows), add=modulation(shift, rows))
    return out


def residual_modulated_layernorm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, residual: Tensor, gate: Tensor, plan: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """h = residual + x * gate, rounded once; returns (LN(h) * (1 + scale) + shift, h), both contiguous."""
    rows, out, h = rows_of(x), contiguous_like(x), contiguous_like(x)
    _launch(
        x, out, rows, eps, plan, one=1.0, mul=modulation(scale, rows), add=modulation(shift, rows),
        residual=residual, gate=modulation(gate, rows), h=h,
    )  # fmt: skip
    return out, h
