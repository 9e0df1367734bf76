"""A YAML file into a pydantic model, and every error of it into one sentence with file, line and fix."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import UserError
from harness.schema import strict_yaml
from harness.schema.strict_yaml import Document, Loc

Model = TypeVar("Model", bound=BaseModel)
Problem = tuple[Loc, str]
"""Where in a file, and a sentence without its place."""

MOST_PROBLEMS = 100
"""Errors of one file that are said one by one."""

_PLAIN = {
    "model_type": "must be a mapping of `key: value`",
    "dict_type": "must be a mapping of `key: value`",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
}
"""Requirements by pydantic's error type, where its own message is not for someone who edits YAML."""


def load_model(path: Path, model: type[Model]) -> tuple[Model, Document]:
    """Read one file as `model`; raises `UserError` with one line for each error, in the order of the file."""
    document = strict_yaml.read(path)
    read, problems = validated(document, model)
    if read is None:
        raise UserError("\n".join(sentences(document, problems)))
    return read, document


def validated(document: Document, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """The document as `model`, or None and what is wrong with it beside what the reader refused."""
    try:
        # the JSON mode: strict about types, and still takes an enum's text and a list for a tuple
        read = model.model_validate_json(json.dumps(document.data), strict=True)
        return (None if document.refused else read), []
    except ValidationError as error:
        schema = model.model_json_schema()
        refused = {loc for loc, _, _ in document.refused}
        found: dict[Loc, list[ErrorDetails]] = {}
        for details in error.errors(include_url=False):
            loc = details["loc"] if details["type"] == "missing" else document.known(details["loc"])
            if loc not in refused:
                found.setdefault(loc, []).append(details)
        # a list whose items are all wrong is reported as too short as well
        consequences = {loc[:length] for loc in (*found, *refused) for length in range(len(loc))}
        causes = [(loc, errors) for loc, errors in found.items() if loc not in consequences]
        problems = [(loc, _sentence(document, schema, loc, errors)) for loc, errors in causes[:MOST_PROBLEMS]]
        if unsaid := len(causes) - len(problems):
            problems.append((problems[-1][0], f"and {unsaid} more errors; mend these first."))
        return None, problems


def sentences(document: Document, problems: Iterable[Problem]) -> list[str]:
    """The problems and what the reader refused as `file:line: sentence`, in the order of the file."""
    found = [(document.lines[document.known(loc)], sentence) for loc, sentence in problems]
    found += [(line, sentence) for _, line, sentence in document.refused]
    in_order = sorted(found, key=lambda one: one[0])
    return [f"{strict_yaml.shown(document.path)}:{line}: {sentence}" for line, sentence in in_order]


def name(document: Document, loc: Loc) -> str:
    """`cases[<id>].dims.T`: the dotted name of a place, list items by their `id` where they have one."""
    value: Any = document.data
    dotted = ""
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
        if isinstance(part, int):
            label = value.get("id", part) if isinstance(value, dict) else part
            dotted += f"[{label}]"
        else:
            dotted += f".{part}" if dotted else part
    return dotted


def _sentence(document: Document, schema: dict[str, Any], loc: Loc, errors: list[ErrorDetails]) -> str:
    details = errors[0]
    if details["type"] == "missing":
        return f"`{name(document, loc)}` is missing; add it{_hint(schema, loc)}."
    if details["type"] == "extra_forbidden":
        known = list(_node(schema, loc[:-1]).get("properties", {}))
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        fix = f"did you mean `{close[0]}`?" if close else f"remove it; the keys here are {', '.join(known)}."
        return f"`{name(document, loc)}` is not a known key; {fix}"
    label = f"`{name(document, loc)}`" if loc else "the file"
    if details["type"] == "value_error":
        return f"{label}: {details['msg'].removeprefix('Value error, ')}"
    hint = _hint(schema, loc) if details["type"] == "string_pattern_mismatch" and loc == details["loc"] else ""
    return f"{label} is {_short(details['input'])} and {' or '.join(dict.fromkeys(map(_requirement, errors)))}{hint}."


def _requirement(details: ErrorDetails) -> str:
    plain = _PLAIN.get(details["type"])
    return plain or re.sub(r"^\w+ should ", "must ", details["msg"]).rstrip(".")


def _hint(schema: dict[str, Any], loc: Loc) -> str:
    """The field's own description in brackets, or nothing."""
    first = _node(schema, loc).get("description", "").split("\n\n")[0]
    hint = " ".join(first.split()).rstrip(".").replace("`", "")
    return f" ({hint})" if hint else ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _node(schema: dict[str, Any], loc: Loc) -> dict[str, Any]:
    """The part of a JSON Schema that describes `loc`, or an empty one."""
    node = _resolved(schema, schema)
    for part in loc:
        inner = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        inner = inner or next(iter(node.get("patternProperties", {}).values()), None)
        node = _resolved(schema, inner) if isinstance(inner, dict) else {}
    return node


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in node:
        node = node["anyOf"][0] | {key: value for key, value in node.items() if key != "anyOf"}
    if "$ref" not in node:
        return node
    target: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return target | {key: value for key, value in node.items() if key != "$ref"}
