"""The arithmetic a manifest may hold so that a derived dim can be checked again: integers, + - * // and brackets."""

import ast
import operator
import re
from collections.abc import Callable

MAX_CHARACTERS = 200

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(expression: str) -> int:
    """The value of e.g. `((81-1)//4+1)*(480//16)*(832//16)`; raises ValueError that says what is not allowed."""
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"it is longer than {MAX_CHARACTERS} characters")
    if not _ALLOWED.fullmatch(expression):
        raise ValueError("only whole numbers, + - * // and brackets are allowed")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("it is not an arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ValueError("it divides by zero") from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only whole numbers, + - * // and brackets are allowed")
