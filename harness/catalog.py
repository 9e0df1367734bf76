"""Finds ops and candidates and checks them against the manifests.

Ops are the folders of `candidates/` with an `op.py`. Candidates are the `Candidate` objects in their modules, in the
modules of installed packages that advertise the entry point group `harness.candidates`, and in the modules or files
named on the command line. A module that cannot be imported is a problem to report, never an error of the others; one
that takes its process down while it is imported is known from `harness.survey` and left alone.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from harness.errors import UserError
from harness.imported import PACKAGE, sources_sha256
from harness.importing import Imports, loaded_extra
from harness.op import Candidate, Op
from harness.schema.vocabulary import Kind


@dataclass(frozen=True)
class Entry:
    """One op with everything found for it."""

    op: Op
    candidates: tuple[Candidate, ...]
    sources: dict[str, str]
    """Candidate id to the hash of the files it is made of."""
    problems: tuple[str, ...]
    """Modules that failed to import and declarations that contradict each other, one sentence each."""
    refused: dict[str, str] = field(default_factory=dict)
    """Candidate id to why it must not be measured: its module's import changed settings of the whole process."""
    idle: frozenset[str] = frozenset()
    """Of the modules and files named on the command line, those that hold nothing for this op."""


def op_ids(root: Path) -> tuple[str, ...]:
    """Ids of the ops below `root/candidates`, sorted; imports nothing."""
    return tuple(sorted(path.parent.name for path in (root / PACKAGE).glob("*/op.py")))


def load(
    op_id: str,
    root: Path,
    extra: Sequence[str] = (),
    *,
    broken: Mapping[str, str] | None = None,
    touch: Callable[[str], None] = lambda what: None,
) -> Entry:
    """Import one op and its candidates; `extra` are modules or .py files with more of them.

    `touch` is told what is imported next; what `broken` names (in the same words) is not imported, and its sentence
    is a problem. Raises UserError when there is no such op, when its `op.py` does not import, or when an extra is not
    to be found.
    """
    if op_id not in op_ids(root):
        raise UserError(
            f"there is no op {op_id!r}; choose one of {', '.join(op_ids(root)) or 'none: candidates/ is empty'}."
        )
    if PACKAGE not in sys.modules:
        # The console script's path lacks the working folder: what is hashed below `root` must be what is imported.
        sys.path.insert(0, str(root))
    imports = Imports(root, broken or {}, touch)
    op = _op_of(op_id, imports)
    extras = [imports.extra(name) for name in extra]
    modules = [*imports.package(f"{PACKAGE}.{op_id}"), *imports.entry_points(), *extras]
    problems = imports.problems
    found: dict[tuple[str, str | None], tuple[Candidate, ModuleType]] = {}
    for module in modules:
        for candidate in _candidates_in(module):
            if candidate.op != op_id:
                if module.__name__.startswith(f"{PACKAGE}.{op_id}."):
                    problems.append(
                        f"{module.__file__}: {candidate.id} says op={candidate.op!r}, its folder is {op_id}."
                    )
                continue
            if (sentence := imports.broken.get(provider_key(candidate))) is not None:
                problems.append(sentence)
                continue
            key = (candidate.id, candidate.context)
            if key in found and found[key][0] is not candidate:
                problems.append(
                    f"{module.__file__}: candidate {candidate.id} is already defined in "
                    f"{found[key][1].__file__}; give it another name."
                )
                continue
            found.setdefault(key, (candidate, module))
    for candidate, module in found.values():
        problems += _contradictions(candidate, op, module)
    ids = [candidate.id for candidate, _ in found.values()]
    problems += [
        f"{PACKAGE}/{op_id}: {duplicate} names two candidates, one alone and one in a context; give each its own name."
        for duplicate in sorted({i for i in ids if ids.count(i) > 1})
    ]
    ordered = sorted(found.values(), key=lambda item: item[0].id)
    return Entry(
        op,
        tuple(candidate for candidate, _ in ordered),
        {c.id: sources_sha256(Path(str(module.__file__)), module.__name__, root) for c, module in ordered},
        tuple(dict.fromkeys(problems)),
        {c.id: reason for c, module in ordered if (reason := imports.changed(module))},
        frozenset(
            name
            for name, module in zip(extra, extras, strict=True)
            if not any(candidate.op == op_id for candidate in _candidates_in(module))
        ),
    )


def for_other_ops(names: Sequence[str], op_ids: Sequence[str]) -> list[str]:
    """What is wrong with extras that hold nothing for any of the ops: one sentence each. They are imported already."""
    problems = []
    for name in names:
        module = loaded_extra(name)
        ops = sorted({candidate.op for candidate in _candidates_in(module)}) if module is not None else []
        has = f"its candidates are for {', '.join(ops)}" if ops else "it defines no candidate"
        problems.append(f"--candidates {name}: nothing in it is for {' or '.join(op_ids)}; {has}.")
    return problems


def provider_key(candidate: Candidate) -> str:
    """What `touch` is told before the candidate's provider is asked anything."""
    return f"provider {candidate.provider.id}"


def _op_of(op_id: str, imports: Imports) -> Op:
    op = getattr(imports.named(f"{PACKAGE}.{op_id}.op"), "OP", None)
    if not isinstance(op, Op):
        raise UserError(f"{PACKAGE}/{op_id}/op.py defines no `OP`; add `OP = Op(id={op_id!r}, ...)`.")
    if op.id != op_id:
        raise UserError(f"{PACKAGE}/{op_id}/op.py: its OP says id={op.id!r}; the id and the folder's name must agree.")
    return op


def _candidates_in(module: ModuleType) -> Iterator[Candidate]:
    return (value for value in vars(module).values() if isinstance(value, Candidate))


def _contradictions(candidate: Candidate, op: Op, module: ModuleType) -> list[str]:
    if candidate.context is None or candidate.context in {context.id for context in op.contexts}:
        return (
            _signature_problem(candidate, op, module)
            or _mutation_problem(candidate, op, module)
            or _annotation_problem(candidate, module)
        )
    contexts = ", ".join(context.id for context in op.contexts) or "none"
    return [f"{module.__file__}: {candidate.id} is for context {candidate.context!r}; op {op.id} has {contexts}."]


def _given(candidate: Candidate, op: Op) -> Mapping[str, inspect.Parameter]:
    """What the op, or the candidate's context, gives."""
    whole = op.native if candidate.context is None else op.context(candidate.context).compose(op.native)
    return inspect.signature(whole).parameters


def _signature_problem(candidate: Candidate, op: Op, module: ModuleType) -> list[str]:
    """A `run` that cannot be called with the op's (or context's) arguments; `prepare` may rename them.

    What has a default in native need not be taken: it is given only where a case differs from it.
    """
    if candidate.prepare is not None:
        return []
    known, takes = _given(candidate, op), inspect.signature(candidate.run).parameters
    always = {name for name, parameter in known.items() if parameter.default is parameter.empty}
    if always <= takes.keys() <= known.keys():
        return []
    took, given = (", ".join(sorted(names)) for names in (takes, always))
    return [f"{module.__file__}: {candidate.id} takes ({took}), {op.id} gives ({given})."]


def _mutation_problem(candidate: Candidate, op: Op, module: ModuleType) -> list[str]:
    """A name in `mutates` that is no argument of the op (or context), whose tensors are what is written to."""
    known = _given(candidate, op)
    unknown = [name for name in candidate.mutates if name not in known]
    if not unknown:
        return []
    return [f"{module.__file__}: {candidate.id} mutates {', '.join(unknown)}; {op.id} gives ({', '.join(known)})."]


def _annotation_problem(candidate: Candidate, module: ModuleType) -> list[str]:
    """A Triton or CUDA `run` that `torch.library.custom_op` can make no operator of; rewrites need no annotations."""
    if candidate.kind is Kind.REWRITE:
        return []
    import torch
    from torch.library import infer_schema

    try:
        schema = torch._C.parse_schema("candidate" + infer_schema(candidate.run, mutates_args=candidate.mutates))
    except ValueError as error:
        said = str(error).splitlines()[0]
        return [f"{module.__file__}: {candidate.id} cannot be made a custom op; annotate it as torch wants: {said}"]
    by_name = [argument.name for argument in schema.arguments if argument.kwarg_only and "Tensor" in str(argument.type)]
    if by_name:
        return [
            f"{module.__file__}: {candidate.id} takes {', '.join(by_name)} by name alone; a custom op takes tensors by "
            "position, so put no `*` before them."
        ]
    return []
