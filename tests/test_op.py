"""Declarations that cannot be right are refused however the candidate is made."""

from typing import Any

import pytest
from torch import Tensor

from harness.op import INHOUSE, Candidate, Provider, candidate
from harness.schema.vocabulary import Contract, Kind


def run(x: Tensor) -> Tensor:
    return x


RIGHT: dict[str, Any] = {
    "name": "mine",
    "op": "toy",
    "kind": Kind.REWRITE,
    "provider": INHOUSE,
    "run": run,
    "kernels": (),
    "contract": Contract.TOLERANCE,
}


@pytest.mark.defence("candidate_declared")
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"kind": Kind.TRITON}, "a triton candidate must name the kernels it launches (kernels=...)"),
        ({"kind": Kind.CUDA}, "a cuda candidate must name the kernels it launches (kernels=...)"),
        ({"kind": Kind.COMPILE}, "must be Kind.REWRITE, Kind.TRITON or Kind.CUDA"),
        ({"kind": "fast"}, "kind='fast' must be Kind.REWRITE, Kind.TRITON or Kind.CUDA"),
        ({"contract": "exactly"}, "contract='exactly' must be Contract.BIT_EXACT or Contract.TOLERANCE"),
        ({"kernels": "my_kernel"}, "kernels='my_kernel' must be a tuple of texts, such as ('my_kernel',)"),
        ({"kernels": ("a(",)}, "kernels: 'a(' is no regular expression (missing ), unterminated subpattern at"),
        ({"mutates": "x"}, "mutates='x' must be a tuple of texts"),
        ({"returns": ("x",)}, "returns=('x',) must be among mutates=()"),
        ({"name": "two words"}, "its name must be letters, digits and underscores"),
        ({"name": "kernel-2"}, "its name must be letters, digits and underscores"),
        ({"provider": "inhouse"}, "provider=... must be a Provider"),
        ({"provider": Provider("my.lib", lambda: None, lambda: None)}, "provider=... must be a Provider whose id is"),
        ({"run": None}, "run=... must be a function"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_declarations_that_cannot_be_right(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^candidate '.*' for toy: ") as raised:
        Candidate(**(RIGHT | wrong))
    assert sentence in str(raised.value)
    declared = {name: value for name, value in (RIGHT | wrong).items() if name != "run"}
    if "run" not in wrong:
        with pytest.raises(ValueError, match="candidate"):
            candidate(**declared)(run)


def test_right_ones_are_made() -> None:
    assert Candidate(**RIGHT).id == "inhouse.mine"
    assert candidate(**{name: value for name, value in RIGHT.items() if name not in ("run", "name")})(run).id == (
        "inhouse.run"
    )
