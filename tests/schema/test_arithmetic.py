"""The formulas of derived dims: right on whole numbers, and nothing else gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schema.arithmetic import MAX_CHARACTERS, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("((81-1)//4+1)*(480//16)*(832//16)", 32760),
        ("((81-1)//4+1)*(720//16)*(1280//16)", 75600),
        ("((4-1)*2+1-1)*2+1", 13),
        ("7 // 2 * 2", 6),
        ("2 + 3 * 4", 14),
        (" 5 ", 5),
    ],
)
def test_value(expression: str, value: int) -> None:
    assert evaluate(expression) == value


ONLY = "only whole numbers, + - * // and brackets are allowed"
NOT_ONE = "it is not an arithmetic expression"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", ONLY),
        ("1.5*2", ONLY),
        ("7/2", ONLY),
        ("2**9", ONLY),
        ("-1", ONLY),
        ("+1", ONLY),
        ("True", ONLY),
        ("S*2", ONLY),
        ("1_000", ONLY),
        ("__import__('os')", ONLY),
        ("9**9**9**9", ONLY),
        ("(1)(2)", ONLY),
        ("()", ONLY),
        ("1+", NOT_ONE),
        ("010", NOT_ONE),
        ("   ", NOT_ONE),
        ("(" * 99 + "1", NOT_ONE),
        ("1//0", "it divides by zero"),
        ("1//(2-2)", "it divides by zero"),
        ("1" * (MAX_CHARACTERS + 1), "it is longer than 200 characters"),
    ],
)
def test_refused(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason.replace('+', '[+]').replace('*', '[*]')}$"):
        evaluate(expression)


trees = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//"]), inner),
    max_leaves=12,
)


@given(trees)
def test_agrees_with_python(expression: str) -> None:
    try:
        wanted = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="divides by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == wanted


@given(st.text(st.sampled_from("0123456789+-*/() abc._'"), max_size=30))
def test_raises_nothing_but_value_errors(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ValueError:
        return
    assert isinstance(value, int)
