"""Shape manifests, `shapes/<op>.yaml`: the cases of one op, where they come from, and its row of the RFC's matrix.

Read without torch. What only the op can judge (dim orders, params, contexts) is `check_against_op`.
"""

from collections.abc import Iterator
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from harness.errors import UserError
from harness.schema.arithmetic import evaluate
from harness.schema.case import Case, Confidence, Identifier, Layout
from harness.schema.strict_yaml import Document, Loc, shown
from harness.schema.validation import Problem, load_model, name, sentences

if TYPE_CHECKING:
    from harness.op import Op

MAX_REHEARSAL_NUMEL = 1 << 21
NO_REF = "—"

_RANKS = {Layout.CHANNELS_LAST: (4, 5), Layout.TRANSPOSED: (2, 3, 4, 5)}
"""Numbers of dims that a layout has a meaning for, where it is not all."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RowType(StrEnum):
    """The RFC's column `Type`."""

    SINGLE = "Single"
    FUSED = "Fused"


class Row(_Strict):
    """The op's row of the RFC's matrix, in the RFC's words."""

    title: Annotated[str, Field(min_length=1, max_length=60)]
    """The RFC's name of the op, e.g. `GroupNorm + SiLU`."""
    type: RowType
    order: Annotated[int, Field(ge=1)]
    """Place in the RFC's table, from 1."""
    triton_ref: str = NO_REF
    """The RFC's Triton candidates."""
    cuda_ref: str = NO_REF
    """The RFC's existing CUDA candidates."""


class Tolerance(_Strict):
    """The RFC's gate against native, `|y - native| <= atol + rtol * |native|`."""

    atol: Annotated[float, Field(ge=0)]
    """Absolute tolerance."""
    rtol: Annotated[float, Field(ge=0)]
    """Relative tolerance."""


class Manifest(_Strict):
    """One op: its row, its tolerance and its cases."""

    op: Identifier
    """Id of the op: the name of this file and of its folder under `candidates/`."""
    row: Row
    """The op's row of the RFC's matrix."""
    tolerance: Tolerance
    """The gate's tolerance against native."""
    deciding_models: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    """Models that must all be tested before the row can be ❌."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    """The shapes to measure."""

    _document: Document = PrivateAttr()

    def place(self, loc: Loc = ()) -> str:
        """`file:line` of e.g. `("cases", 3, "dims")`."""
        return self._document.place(loc)

    def case(self, case_id: str) -> Case:
        """The case of that id; raises `UserError` with the ids there are."""
        for case in self.cases:
            if case.id == case_id:
                return case
        ids = ", ".join(case.id for case in self.cases)
        raise UserError(f"{shown(self._document.path)}: there is no case `{case_id}`; choose one of {ids}.")

    def steps(self) -> dict[tuple[str, str], tuple[Case, ...]]:
        """Cases by (model, step), in file order: only within one of these may `calls` weight cases together."""
        by_step: dict[tuple[str, str], tuple[Case, ...]] = {}
        for case in self.cases:
            by_step[case.model, case.step] = (*by_step.get((case.model, case.step), ()), case)
        return by_step


def load_manifest(path: Path) -> Manifest:
    """Read and check one manifest; raises `UserError` with one line for each error, each with file, line and fix."""
    manifest, document = load_model(path, Manifest)
    manifest._document = document
    if problems := sentences(document, _problems(manifest)):
        raise UserError("\n".join(problems))
    return manifest


def load_manifests(folder: Path) -> dict[str, Manifest]:
    """All manifests of a folder by op, in the order of the RFC's table; raises `UserError` with all errors of all."""
    manifests: list[Manifest] = []
    problems: list[str] = []
    for path in sorted(folder.glob("*.y*ml")):
        try:
            if path.suffix != ".yaml":
                raise UserError(f"{shown(path)}: manifests end in .yaml; rename the file.")
            manifests.append(load_manifest(path))
        except UserError as error:
            problems.append(str(error))
    manifests.sort(key=lambda manifest: manifest.row.order)
    for order, sharing in groupby(manifests, key=lambda manifest: manifest.row.order):
        first, *others = sharing
        problems += [
            f"{other.place(('row', 'order'))}: order {order} is taken by {first.op}; give each row its own place."
            for other in others
        ]
    if not manifests and not problems:
        problems.append(f"{shown(folder)}: there are no manifests; name a folder with <op>.yaml files.")
    if problems:
        raise UserError("\n".join(problems))
    return {manifest.op: manifest for manifest in manifests}


def check_against_op(manifest: Manifest, op: "Op") -> list[str]:
    """What the op finds impossible in its manifest, one `file:line: sentence` each: dim orders, params, contexts."""
    problems: list[Problem] = []
    if manifest.op != op.id:
        problems.append((("op",), f"`op` is {manifest.op} and the op calls itself {op.id}; give both one id."))
    for index, case in enumerate(manifest.cases):
        here: Loc = ("cases", index)
        problems += [((*here, *loc), f"case {case.id}: {sentence}") for loc, sentence in _against_op(case, op)]
    return sentences(manifest._document, problems)


def json_schema() -> dict[str, Any]:
    """JSON Schema of a manifest, for editors and other tools."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Manifest.model_json_schema()


def _against_op(case: Case, op: "Op") -> Iterator[Problem]:
    orders = " or ".join(f"({', '.join(order)})" for order in op.dims)
    order_fits = tuple(case.dims) in op.dims
    if not order_fits:
        yield ("dims",), f"dims ({', '.join(case.dims)}) are not what {op.id} takes; write {orders}."
    params_fit = True
    for param, expected in op.params.items():
        if param not in case.params:
            params_fit = False
            yield ("params",), f"`params.{param}` is missing; add it, it is of type {expected.__name__}."
        elif type(case.params[param]) is not expected:
            params_fit = False
            value = case.params[param]
            yield (
                ("params", param),
                f"`params.{param}` is {value!r} of type {type(value).__name__}; write a value of type "
                f"{expected.__name__}.",
            )
    for param in case.params.keys() - op.params.keys():
        yield ("params", param), f"{op.id} takes no `{param}`; remove it; it takes {', '.join(op.params)}."
    known = [context.id for context in op.contexts]
    for position, context in enumerate(case.contexts):
        if context not in known:
            yield (
                ("contexts", position),
                f"{op.id} has no context `{context}`; choose from {', '.join(known) or 'none'}.",
            )
    if order_fits and params_fit:
        for loc, sized in ((("dims",), case), (("rehearsal",), case.rehearsed())):
            if (sentence := op.check(sized)) is not None:
                yield loc, f"`{loc[0]}` is impossible: {sentence.rstrip('.')}; correct it."


def _problems(manifest: Manifest) -> Iterator[Problem]:
    """What pydantic cannot see: everything that needs two places of the file."""
    document = manifest._document
    if manifest.op != document.path.stem:
        yield ("op",), f"`op` is {manifest.op} and the file is {document.path.name}; give both one name."
    yield from _deciding_problems(manifest)
    orders: dict[frozenset[str], tuple[str, ...]] = {}
    ids: dict[str, int] = {}
    measured: dict[tuple[object, ...], str] = {}
    for index, case in enumerate(manifest.cases):
        here: Loc = ("cases", index)
        line = document.lines[(*here, "id")]
        if (first := ids.setdefault(case.id, line)) != line:
            yield (*here, "id"), f"case id `{case.id}` stands here again (first on line {first}); give it its own."
            continue
        order = orders.setdefault(frozenset(case.dims), tuple(case.dims))
        if order != tuple(case.dims):
            yield (
                (*here, "dims"),
                f"case {case.id}: dims are ({', '.join(case.dims)}) here and ({', '.join(order)}) above; "
                "use one order.",
            )
        shape = (case.model, case.step, *case.dims.items(), case.dtype, *sorted(case.params.items()))
        if (twin := measured.setdefault(shape, case.id)) != case.id:
            yield (
                (*here, "dims"),
                f"case {case.id}: `{twin}` has the same model, step, dims and params, so its calls would count "
                "twice; add up the calls, or name another step.",
            )
        for loc, sentence in _case_problems(case):
            yield (*here, *loc), f"`{name(document, (*here, *loc))}` {sentence}"


def _deciding_problems(manifest: Manifest) -> Iterator[Problem]:
    for index, model in enumerate(manifest.deciding_models):
        loc = ("deciding_models", index)
        confidences = {case.confidence for case in manifest.cases if case.model == model}
        if model in manifest.deciding_models[:index]:
            yield loc, f"deciding model `{model}` stands here twice; keep one."
        elif not confidences:
            models = ", ".join(dict.fromkeys(case.model for case in manifest.cases))
            yield loc, f"deciding model `{model}` has no case; add one, or choose from {models}."
        elif confidences == {Confidence.MEMORY}:
            yield loc, f"deciding model `{model}` has only cases from memory; add one whose dims were read or derived."


def _case_problems(case: Case) -> Iterator[Problem]:
    ranks = _RANKS.get(case.layout)
    if ranks and len(case.dims) not in ranks:
        wanted = " or ".join(map(str, ranks))
        yield ("layout",), f"is {case.layout}, which needs {wanted} dims and there are {len(case.dims)}; correct one."
    if len(set(case.contexts)) < len(case.contexts):
        yield ("contexts",), "names a context twice; keep one."
    if tuple(case.rehearsal) != tuple(case.dims):
        yield ("rehearsal",), f"must have the same names in the same order as dims; write {', '.join(case.dims)}."
    else:
        for dim, size in case.rehearsal.items():
            if size > case.dims[dim]:
                yield ("rehearsal", dim), f"is {size}, larger than the case's {case.dims[dim]}; make it smaller."
        if (numel := case.rehearsed().numel) > MAX_REHEARSAL_NUMEL:
            yield ("rehearsal",), f"has {numel} elements; make it at most {MAX_REHEARSAL_NUMEL}, it runs on laptops."
    if case.confidence is Confidence.DERIVED and not case.formula:
        yield ("confidence",), "is derived and there is no `formula`; add one, such as `formula: {H: 1024 // 8}`."
    for dim, expression in case.formula.items():
        if dim not in case.dims:
            yield ("formula", dim), f"names no dim; choose from {', '.join(case.dims)}."
            continue
        try:
            value = evaluate(expression)
        except ValueError as error:
            yield ("formula", dim), f"cannot be checked: {error}; correct it."
        else:
            if value != case.dims[dim]:
                yield ("formula", dim), f"gives {value} and dims.{dim} is {case.dims[dim]}; correct one of them."
