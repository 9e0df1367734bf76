"""What is wrong with a manifest's cases beyond their types: what needs two places of the file, or the op itself."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.schema.arithmetic import evaluate
from harness.schema.case import Case, Confidence, Layout
from harness.schema.strict_yaml import Document, Loc
from harness.schema.validation import Problem, name

if TYPE_CHECKING:
    from harness.op import Op

MAX_REHEARSAL_NUMEL = 1 << 21

_RANKS = {Layout.CHANNELS_LAST: (4, 5), Layout.TRANSPOSED: (2, 3, 4, 5)}
"""Numbers of dims that a layout has a meaning for, where it is not all."""


def against_op(case: Case, op: "Op") -> Iterator[Problem]:
    """What the op finds impossible in one case; places are below the case."""
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


def cross_problems(
    document: Document,
    op: str | None,
    deciding_models: Sequence[str],
    cases: Sequence[tuple[int, Case]],
    doubtful: frozenset[object],
) -> Iterator[Problem]:
    """What pydantic cannot see: everything that needs two places of the file.

    `doubtful` are the models of cases that could not be read.
    """
    if op is not None and op != document.path.stem:
        yield ("op",), f"`op` is {op} and the file is {document.path.name}; give both one name."
    yield from _deciding_problems(deciding_models, [case for _, case in cases], doubtful)
    orders: dict[frozenset[str], tuple[str, ...]] = {}
    ids: dict[str, int] = {}
    measured: dict[tuple[object, ...], str] = {}
    for index, case in cases:
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
        shape = (case.model, case.step, case.ranks, *case.dims.items(), case.dtype, *sorted(case.params.items()))
        if (twin := measured.setdefault(shape, case.id)) != case.id:
            yield (
                (*here, "dims"),
                f"case {case.id}: `{twin}` has the same model, step, dims and params, so its calls would count "
                "twice; add up the calls, or name another step.",
            )
        for loc, sentence in _case_problems(case):
            yield (*here, *loc), f"`{name(document, (*here, *loc))}` {sentence}"


def _deciding_problems(
    deciding_models: Sequence[str], cases: Sequence[Case], doubtful: frozenset[object]
) -> Iterator[Problem]:
    for index, model in enumerate(deciding_models):
        loc = ("deciding_models", index)
        confidences = {case.confidence for case in cases if case.model == model}
        if model in deciding_models[:index]:
            yield loc, f"deciding model `{model}` stands here twice; keep one."
        elif doubtful & {model, None}:
            continue  # its cases are not all known yet
        elif not confidences:
            models = ", ".join(dict.fromkeys(case.model for case in cases))
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
