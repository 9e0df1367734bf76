"""Guards on a modulation case's own parameters, and the table view that most upstream kernels take."""

from torch import Tensor

from candidates.adaln_modulation.op import Form, Per
from harness.op import Device, Guard
from harness.schema.case import Case

PER_BATCH = (Per.BATCH_2D, Per.BATCH)


def forms(*allowed: Form) -> Guard:
    """One of these forms."""

    def guard(case: Case, device: Device) -> str | None:
        form = case.params["form"]
        return None if form in allowed else f"computes form {' or '.join(allowed)}, the case is {form}"

    return guard


def tables(*allowed: Per) -> Guard:
    """Scale, and shift where there is one, of these granularities."""

    def guard(case: Case, device: Device) -> str | None:
        for name in ("scale_per", "shift_per"):
            per = case.params[name]
            if per != Per.NONE and per not in allowed:
                return f"takes tables {', '.join(allowed)}, the case's {name} is {per}"
        return None

    return guard


def one_dtype(case: Case, device: Device) -> str | None:
    """Tables of x's dtype, rounded after each step."""
    if case.params["table"] != case.dtype:
        return f"takes tables of x's dtype, the case has {case.params['table']} with {case.dtype}"
    return stepwise(case, device)


def stepwise(case: Case, device: Device) -> str | None:
    """No arithmetic in fp32 on 16-bit tables."""
    return "computes in the tables' dtype, the case in fp32" if case.params["upcast"] else None


def fp32_arithmetic(case: Case, device: Device) -> str | None:
    """fp32 tables, or 16-bit ones whose arithmetic is lifted to fp32."""
    if case.params["table"] == "float32" or case.params["upcast"]:
        return None
    return "computes in fp32, the case rounds after each step"


def widths_of(multiple: int, most: int) -> Guard:
    """D a multiple of this, up to that."""

    def guard(case: Case, device: Device) -> str | None:
        width = case.dims["D"]
        return (
            None if width % multiple == 0 and width <= most else f"D={width}: takes multiples of {multiple} to {most}"
        )

    return guard


def tables_span_less_than(elements: int) -> Guard:
    """Offsets into the tables, chunks skipped included, fit the kernel's integers."""

    def guard(case: Case, device: Device) -> str | None:
        wide = Per.TOKEN in (case.params["scale_per"], case.params["shift_per"])
        span = case.numel * int(case.params["chunks"]) if wide else 0
        return None if span < elements else f"32-bit offsets: tables of {span:,} elements reach past {elements:,}"

    return guard


def per_batch(table: Tensor) -> Tensor:
    """(B, D) or (B, 1, D) as (B, D)."""
    return table if table.ndim == 2 else table[:, 0]
