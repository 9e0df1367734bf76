"""The reference of every file's schema in Markdown, from the models and the docstrings below their fields."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.e2e.order import FILE, Order
from harness.report.text import NOTHING, code, spans, table
from harness.schema.claims import Claims
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.schema.process import ProcessRecord
from harness.schema.verdict import Verdicts
from harness.schema.workload import Workload

Model = type[BaseModel]

FILES: tuple[tuple[str, Model, str], ...] = (
    ("shapes/<op>.yaml", Manifest, "The cases of one op. Written by people; `harness check` says what is wrong."),
    ("shapes/workloads/<model>.yaml", Workload, "A model and what of it is timed. Written by people."),
    (FILE, Order, "Which end-to-end cells come first. Written by people."),
    ("reports/claims.yaml", Claims, "Who works on which row. Written by people."),
    (
        "results/<device>/<op>.jsonl",
        Measurement,
        'One measurement a line, as `{"record": ..., "sha256": ...}`. Appended by `harness bench`, never edited.',
    ),
    (
        "results/<device>/e2e/<op>.jsonl",
        ProcessRecord,
        "One process of an end-to-end cell a line, framed alike. Appended by `harness e2e`, never edited.",
    ),
    ("reports/verdicts.json", Verdicts, "Everything that the reports print. Written by `harness decide`."),
)

_INTRO = """\
# Schema reference

Made by `harness schema --markdown` from the models in `harness/schema/`; not edited by hand, and a test compares it
with them. Unknown keys are refused everywhere. YAML is read strictly: one meaning for every scalar, no duplicate keys.
`harness schema` prints the JSON Schema of the shape manifests, for editors."""


def markdown() -> str:
    """The page: every file, then every model once, where it is first needed."""
    parts = [_INTRO]
    seen: set[Model] = set()
    for path, model, what in FILES:
        parts += [f"## {code(path)}", what]
        for one in _reachable(model):
            if one not in seen:
                seen.add(one)
                parts += [f"### {one.__name__}", *_section(one)]
    return "\n\n".join(parts) + "\n"


def _reachable(model: Model) -> Iterator[Model]:
    """The model, then those that its fields name, depth first."""
    found: dict[Model, None] = {}

    def visit(one: Model) -> None:
        if one in found:
            return
        found[one] = None
        for field in one.model_fields.values():
            for inner in _models_in(field.annotation):
                visit(inner)

    visit(model)
    return iter(found)


def _models_in(annotation: Any) -> Iterator[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _section(model: Model) -> list[str]:
    said = _first_paragraph(inspect.getdoc(model) or "")
    rows = [
        (code(field.alias or name), _type(field), _default(field), spans(_docs(model).get(name, "")) or NOTHING)
        for name, field in model.model_fields.items()
    ]
    return [spans(said), table(("field", "type", "default", "meaning"), rows)]


def _first_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


@cache
def _docs(model: Model) -> dict[str, str]:
    """Field to the docstring below it, those of bases included."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if base is BaseModel or not issubclass(base, BaseModel):
            continue
        body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[statement.target.id] = _first_paragraph(str(below.value.value))
    return found


def _type(field: FieldInfo) -> str:
    limits = _limits(field.metadata)
    return _named(field.annotation) + (f", {limits}" if limits else "")


def _named(annotation: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is type(None) or annotation is None:
        return "null"
    if origin is Annotated:
        limits = _limits(parts[1:])
        return _named(parts[0]) + (f" ({limits})" if limits else "")
    if origin is Literal:
        return " or ".join(code(str(part)) for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_named(part) for part in parts))
    if origin is tuple:
        if len(parts) == 2 and parts[1] is Ellipsis:
            return f"list of {_named(parts[0])}"
        return f"[{', '.join(_named(part) for part in parts)}]"
    if origin in (list, frozenset, set):
        return f"list of {_named(parts[0])}"
    if origin is dict:
        return f"map of {_named(parts[0])} to {_named(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(code(str(member.value)) for member in annotation)
    return {"str": "text", "bool": "true or false", "int": "whole number", "float": "number"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _limits(metadata: Any) -> str:
    """What a value must also be."""
    said = []
    for one in metadata:
        if isinstance(one, FieldInfo):
            said.append(_limits(one.metadata))
            continue
        for attribute, words in (("ge", "≥ {}"), ("gt", "> {}"), ("le", "≤ {}"), ("lt", "< {}")):
            if (value := getattr(one, attribute, None)) is not None:
                said.append(words.format(value))
        if (value := getattr(one, "min_length", None)) is not None:
            said.append(f"at least {value} long")
        if (value := getattr(one, "max_length", None)) is not None:
            said.append(f"at most {value} long")
        if (value := getattr(one, "pattern", None)) is not None:
            said.append(f"like `{value}`".replace("|", "\\|"))
    return ", ".join(filter(None, said))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "null"
    if isinstance(value, Enum):
        return code(str(value.value))
    if value in ("", (), {}, []):
        return "empty"
    return code(str(value).lower() if isinstance(value, bool) else str(value))
