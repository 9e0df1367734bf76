"""Contract probes: what a registration says of itself is what it does."""

import pytest
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import INHOUSE, Candidate, candidate
from harness.schema.vocabulary import ArmStatus, Contract, Kind
from tests.rig import arm_of, measured, without_inductor

DECLARED = {"op": "rmsnorm", "kind": Kind.TRITON, "provider": INHOUSE, "kernels": ("x",)}


@candidate(**DECLARED, contract=Contract.TOLERANCE)  # type: ignore[arg-type]
def with_a_default(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """The case gives no rounding: its schema's default stands for it."""
    return native(x, weight, eps, rounding)


@candidate(**DECLARED, contract=Contract.TOLERANCE)  # type: ignore[arg-type]
def in_another_order(weight: Tensor | None, x: Tensor, eps: float = 1e-6) -> Tensor:
    """Neither the op's order nor its lack of a default: torch calls the fake in this order, and without eps."""
    return native(x, weight, eps)


@candidate(**DECLARED, contract=Contract.TOLERANCE)  # type: ignore[arg-type]
def by_name(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    """eps by name alone."""
    return native(x, weight, eps)


@candidate(**DECLARED, contract=Contract.TOLERANCE, context="residual_add")  # type: ignore[arg-type]
def whole_context(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Arguments in an order of its own, and no fake: the neighbours and the op's own fake stand for it."""
    summed = x + residual
    return native(summed, weight, eps), summed


@candidate(**DECLARED, contract=Contract.TOLERANCE, context="residual_add")  # type: ignore[arg-type]
def other_strides(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Writes the sum transposed, which no fake says."""
    summed = (x + residual).transpose(-1, -2).contiguous().transpose(-1, -2)
    return native(summed, weight, eps), summed


@pytest.fixture(autouse=True)
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    without_inductor(monkeypatch)


def test_an_argument_with_a_default_need_not_be_given() -> None:
    arm = arm_of(measured(with_a_default), with_a_default)
    assert arm.status is ArmStatus.REHEARSED, arm.reason


@pytest.mark.parametrize("tried", [in_another_order, by_name], ids=lambda one: one.name)
def test_the_order_and_the_defaults_of_arguments_are_the_candidates_own(tried: Candidate) -> None:
    arm = arm_of(measured(tried), tried)
    assert arm.status is ArmStatus.REHEARSED, arm.reason


def test_a_candidate_of_a_whole_context_needs_no_fake_where_the_neighbours_say_it() -> None:
    of = measured(whole_context, other_strides, context="residual_add")
    assert arm_of(of, whole_context).status is ArmStatus.REHEARSED, arm_of(of, whole_context).reason
    assert arm_of(of, other_strides).status is ArmStatus.GATE_FAILED
    assert "its fake says strides" in arm_of(of, other_strides).reason
