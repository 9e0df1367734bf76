"""What a candidate cannot be called with makes it ineligible, with the reason, and not crashed."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from candidates.rmsnorm.op import OP
from harness.measure.eligible import does_not_fit
from harness.op import Args, Context, Draw, Impl
from harness.protocol import Task
from harness.schema.case import Case
from harness.schema.vocabulary import ArmStatus
from tests.evil import hidden_work
from tests.rig import arm_of, comparison, quick, rmsnorm_case


def test_an_argument_that_it_does_not_know_is_named() -> None:
    assert does_not_fit(hidden_work.fine, OP, None, {"x": 0, "weight": 0, "eps": 0}) == ""
    given = {"x": 0, "weight": 0, "eps": 0, "rounding": 0}
    narrow = replace(hidden_work.fine, run=lambda x, weight, eps: x)
    assert does_not_fit(narrow, OP, None, given) == "takes no rounding, which the case gives"
    wide = replace(hidden_work.fine, run=lambda x, **rest: x)
    assert does_not_fit(wide, OP, None, given) == ""


@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        ({"x": 0, "weight": 0, "eps": 0}, ""),
        ({"x": 0, "weight": 0, "eps": 0, "y": 0}, "takes no y, which the case gives or its `prepare` makes"),
        (None, "its `prepare` gives a NoneType, not a dict of arguments"),
        ([0], "its `prepare` gives a list, not a dict of arguments"),
    ],
)
def test_what_prepare_makes_is_what_it_takes(prepared: Any, reason: str) -> None:
    narrow = replace(hidden_work.fine, run=lambda x, weight, eps: x, prepare=lambda args: prepared)
    assert does_not_fit(narrow, OP, None, {"x": 0, "weight": 0, "eps": 0}) == reason


def _twice(impl: Impl) -> Impl:
    def twice(a: Tensor, b: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return impl(x=a, weight=weight, eps=eps), impl(x=b, weight=weight, eps=eps)

    return twice


def _two_inputs(case: Case, draw: Draw) -> Args:
    args = OP.inputs(case, draw)
    return {"a": args.pop("x"), "b": draw.activation("b", case.shape, case.layout), **args}


def test_between_neighbours_nothing_is_prepared_that_arises_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `prepare` takes may be no argument of the context, and what it makes may not get through."""
    quick(monkeypatch)
    more = Context(id="twice", what="two at once", inputs=_two_inputs, compose=_twice, bytes_moved=OP.bytes_moved)
    op = replace(OP, contexts=(*OP.contexts, more))
    reads_eps = replace(hidden_work.prepares_result, prepare=lambda args: {**args, "y": args["weight"]}, name="adds")
    case = rmsnorm_case(contexts=("residual_add", "twice"))
    candidates = [hidden_work.prepares_weight, reads_eps, hidden_work.fine]
    beside = comparison(candidates, op=op).run(Task(case=case, context="residual_add"))
    assert arm_of(beside, hidden_work.prepares_weight).status is ArmStatus.OK, "the weight is the context's too"
    added = arm_of(beside, reads_eps)
    assert (added.status, added.reason) == (
        ArmStatus.INELIGIBLE,
        "prepares y ahead, which this context does not hand on",
    )
    twice = comparison(candidates, op=op).run(Task(case=case, context="twice"))
    absent = arm_of(twice, hidden_work.prepares_weight)
    assert (absent.status, absent.reason) == (
        ArmStatus.INELIGIBLE,
        "prepares the op's arguments ahead, and x arises inside this context",
    )
    assert arm_of(twice, hidden_work.fine).status is ArmStatus.OK
