"""LayerNorm on tensors: picks tile sizes and launches the tile kernel. Imports only torch and Triton."""

from dataclasses import dataclass

from torch import Tensor

from candidates.layernorm.kernels.tile import layernorm_tile
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

WIDEST = 16384
"""Elements of a row that are held in registers; there is no kernel for longer ones."""
_NARROW = 512
_TILE_ELEMENTS = 2048
_ELEMENTS_PER_THREAD = 40
_FEW_ROWS, _SOME_ROWS = 512, 4096
_SPARE_REGISTERS = 24


@dataclass(frozen=True)
class Plan:
    """Tile of the kernel."""

    rows: int
    chunk: int
    """Columns that are loaded at once; a row has as many chunks as it needs."""
    warps: int
    first: bool
    """Whether the modulation is asked for together with the row, not after its statistics."""


def make_plan(rows: int, width: int, modulation_bytes: int, residual: bool) -> Plan:
    """The tile for `rows` rows of `width` elements; `modulation_bytes`: of an element of scale or shift, 0 without.

    Measured on an H200, bf16 (µs back to back; a plan's neighbours differ in what is named):

    * Four warps a row. 32760 x 1536: 49.7, two warps 50.6. 75600 x 5120: 371, eight warps and the modulation first
      447. 128 x 3072: 2.35, eight warps 2.39, sixteen 2.44. Beyond 40 elements a thread warps double (not measured).
    * One row a program, unless rows are narrow. 32760 x 1536: two rows 49.7 too; 75600 x 5120: 372.9 against 370.9.
    * Chunks of eight elements a thread (16-byte loads), or of four where that leaves fewer columns idle: 32760 x 1536
      in chunks of 1024 took 54.9 without a modulation, in chunks of 512 49.2.
    * The modulation after the statistics where rows are many: 32760 x 1536 in fp32 49.7, first 56.2. First where time
      is latency (512 rows at most), and, by 1 %, where it takes few registers and there is a residual to wait for
      (32760 x 1536 96.6, after 97.4) or some rows only (4096 x 3072 in bf16 14.46, after 14.55).
    """
    if width <= _NARROW:
        chunk = _power_of_two(width)
        return Plan(_TILE_ELEMENTS // chunk, chunk, warps=4, first=False)
    warps = 4
    while width > _ELEMENTS_PER_THREAD * 32 * warps:
        warps *= 2
    wide, narrow = 256 * warps, 128 * warps
    chunk = wide if -width % wide == -width % narrow else narrow
    registers = 2 * width * modulation_bytes // (32 * warps * 4)
    first = rows <= _FEW_ROWS or (registers <= _SPARE_REGISTERS and (residual or rows <= _SOME_ROWS))
    return Plan(1, chunk, warps, first and modulation_bytes > 0)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _launch(
    x: Tensor, out: Tensor, rows: Rows, eps: float, plan: Plan | None, *, one: float = 0.0,
    mul: Shared | None = None, add: Shared | None = None,
    residual: Tensor | None = None, gate: Shared | None = None, h: Tensor | None = None,
) -> None:  # fmt: skip
    if is_empty(x):
        return
    if rows.width > WIDEST:
        raise ValueError(f"rows of {rows.width} elements are longer than {WIDEST}")
    plan = plan or make_plan(
        rows.count, rows.width, 0 if mul is None else mul.tensor.element_size(), residual is not None
    )
    # a tensor that is not there is never touched; x stands in for it
    nothing = Shared(x, 0, 0, rows.tokens)
    gate_, mul_, add_ = modulations = gate or nothing, mul or nothing, add or nothing
    even, arguments = addresses(rows, rows if residual is None else rows_of(residual), modulations)
    shared = all(each.batch_stride == each.group_stride == 0 for each in modulations)
    per_token = mul is not None and mul.tokens == 1 and rows.tokens > 1
    layernorm_tile[(-(-rows.count // plan.rows),)](
        x, x if residual is None else residual, gate_.tensor, mul_.tensor, add_.tensor, out, x if h is None else h,
        eps, rows.count, *arguments,
        D=rows.width, ROWS=plan.rows, CHUNK=plan.chunk,
        VECTOR=min(16 // x.element_size(), plan.chunk, plan.rows * plan.chunk // (32 * plan.warps)),
        EVEN=even, SHARED=shared, ONE=one, AFFINE=mul is not None, RESIDUAL=residual is not None, FIRST=plan.first,
        POLICY="evict_first" if per_token else "evict_last", num_warps=plan.warps,
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
