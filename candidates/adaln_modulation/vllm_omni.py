"""vllm-omni's indexed modulation in Triton, as MiniMax-H3 uses it: fp32 inside, one rounding."""

from torch import Tensor

from candidates._providers import vllm_omni
from candidates._providers.guards import all_of, contiguous, spans_less_than
from candidates.adaln_modulation.guards import forms, tables
from candidates.adaln_modulation.op import Form, Per
from harness.op import Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_guard = all_of(tables(Per.INDEX), contiguous, spans_less_than(1 << 31))


def _scale_constant_is_one(case: Case, device: Device) -> str | None:
    return None if case.params["scale_constant"] == 1 else "adds 1 to the scale"


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=vllm_omni.PROVIDER,
    kernels=("_indexed_scale_shift_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(forms(Form.SCALE_SHIFT), _scale_constant_is_one, _guard),
    mutates=("x",),
    returns=("x",),
)
def indexed_scale_shift(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> None:  # fmt: skip
    """x (T, D) in place, tables (rows, D), index (T,)."""
    vllm_omni.function("indexed_modulation", "indexed_scale_shift_")(x, shift, scale, index)


@candidate(
    op="adaln_modulation",
    kind=Kind.TRITON,
    provider=vllm_omni.PROVIDER,
    kernels=("_indexed_gate_kernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(forms(Form.GATE), _guard),
)
def indexed_gate(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x, residual (T, D), gates (rows, D), index (T,)."""
    y: Tensor = vllm_omni.function("indexed_modulation", "indexed_gate")(residual, scale, x, index)
    return y
