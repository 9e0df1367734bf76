"""Finds ops and candidates and checks them against the manifests.

Ops are the folders of `candidates/` with an `op.py`. Candidates are the `Candidate` objects in their modules, in the
modules of installed packages that advertise the entry point group `harness.candidates`, and in the modules or files
named on the command line. A module that cannot be imported is a problem to report, never an error of the others.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from harness.errors import UserError
from harness.op import Candidate, Op
from harness.sources import files_sha256

ENTRY_POINT_GROUP = "harness.candidates"
PACKAGE = "candidates"


@dataclass(frozen=True)
class Entry:
    """One op with everything found for it."""

    op: Op
    candidates: tuple[Candidate, ...]
    sources: dict[str, str]
    """Candidate id to the hash of the files it is made of."""
    problems: tuple[str, ...]
    """Modules that failed to import and declarations that contradict each other, one sentence each."""


def op_ids(root: Path) -> tuple[str, ...]:
    """Ids of the ops below `root/candidates`, sorted; imports nothing."""
    return tuple(sorted(path.parent.name for path in (root / PACKAGE).glob("*/op.py")))


def load(op_id: str, root: Path, extra: Sequence[str] = ()) -> Entry:
    """Import one op and its candidates; `extra` are modules or .py files with more of them.

    Raises UserError when there is no such op, when its `op.py` does not import, or when an extra is not to be found.
    """
    if op_id not in op_ids(root):
        raise UserError(
            f"there is no op {op_id!r}; choose one of {', '.join(op_ids(root)) or 'none: candidates/ is empty'}."
        )
    if PACKAGE not in sys.modules:
        # The console script's path lacks the working folder: what is hashed below `root` must be what is imported.
        sys.path.insert(0, str(root))
    op = _op_of(op_id)
    problems: list[str] = []
    modules = [*_package_modules(op_id, problems), *_entry_point_modules(problems), *map(_extra_module, extra)]
    found: dict[tuple[str, str | None], tuple[Candidate, ModuleType]] = {}
    for module in modules:
        for candidate in _candidates_in(module):
            if candidate.op != op_id:
                if module.__name__.startswith(f"{PACKAGE}.{op_id}."):
                    problems.append(
                        f"{module.__file__}: {candidate.id} says op={candidate.op!r}, its folder is {op_id}."
                    )
                continue
            key = (candidate.id, candidate.context)
            if key in found and found[key][0] is not candidate:
                problems.append(
                    f"{module.__file__}: candidate {candidate.id} is already defined in "
                    f"{found[key][1].__file__}; give it another name."
                )
                continue
            found.setdefault(key, (candidate, module))
    for name, module in zip(extra, modules[len(modules) - len(extra) :], strict=True):
        if not any(candidate.op == op_id for candidate in _candidates_in(module)):
            ops = sorted({candidate.op for candidate in _candidates_in(module)})
            has = f"its candidates are for {', '.join(ops)}" if ops else "it defines no candidate"
            problems.append(f"--candidates {name}: nothing in it is for {op_id}; {has}.")
    for candidate, module in found.values():
        problems += _contradictions(candidate, op, module)
    ids = [candidate.id for candidate, _ in found.values()]
    problems += [
        f"{PACKAGE}/{op_id}: {duplicate} names two candidates, one alone and one in a context; give each its own name."
        for duplicate in sorted({i for i in ids if ids.count(i) > 1})
    ]
    ordered = sorted(found.values(), key=lambda item: item[0].id)
    sources = {candidate.id: _source_sha256(module, root) for candidate, module in ordered}
    return Entry(op, tuple(candidate for candidate, _ in ordered), sources, tuple(problems))


def _op_of(op_id: str) -> Op:
    try:
        module = importlib.import_module(f"{PACKAGE}.{op_id}.op")
    except (Exception, SystemExit) as error:
        raise UserError(f"{PACKAGE}/{op_id}/op.py does not import: {type(error).__name__}: {error}.") from error
    op = getattr(module, "OP", None)
    if not isinstance(op, Op):
        raise UserError(f"{PACKAGE}/{op_id}/op.py defines no `OP`; add `OP = Op(id={op_id!r}, ...)`.")
    if op.id != op_id:
        raise UserError(f"{PACKAGE}/{op_id}/op.py: its OP says id={op.id!r}; the id and the folder's name must agree.")
    return op


def _package_modules(op_id: str, problems: list[str]) -> Iterator[ModuleType]:
    package = importlib.import_module(f"{PACKAGE}.{op_id}")
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        name = f"{package.__name__}.{info.name}"
        try:
            yield importlib.import_module(name)
        except (Exception, SystemExit) as error:
            problems.append(f"{name} does not import: {type(error).__name__}: {error}.")


def _entry_point_modules(problems: list[str]) -> Iterator[ModuleType]:
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded = entry_point.load()
        except (Exception, SystemExit) as error:
            problems.append(f"entry point {entry_point.name} ({entry_point.value}): {type(error).__name__}: {error}.")
            continue
        if isinstance(loaded, ModuleType):
            yield loaded
        else:
            problems.append(f"entry point {entry_point.name} ({entry_point.value}) must name a module.")


def _extra_module(name: str) -> ModuleType:
    """A module by dotted name or file path."""
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        module_name = f"harness_extra_{path.stem}"
        if module_name in sys.modules and sys.modules[module_name].__file__ == str(path):
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UserError(f"--candidates {name}: no such file.")
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # its own helpers lie beside it
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"--candidates {name} does not import: {type(error).__name__}: {error}.") from error
    return module


def _candidates_in(module: ModuleType) -> Iterator[Candidate]:
    return (value for value in vars(module).values() if isinstance(value, Candidate))


def _contradictions(candidate: Candidate, op: Op, module: ModuleType) -> list[str]:
    if candidate.context is None or candidate.context in {context.id for context in op.contexts}:
        return _signature_problem(candidate, op, module)
    contexts = ", ".join(context.id for context in op.contexts) or "none"
    return [f"{module.__file__}: {candidate.id} is for context {candidate.context!r}; op {op.id} has {contexts}."]


def _signature_problem(candidate: Candidate, op: Op, module: ModuleType) -> list[str]:
    """A `run` that cannot be called with the op's (or context's) arguments; `prepare` may rename them."""
    if candidate.prepare is not None:
        return []
    whole = op.native if candidate.context is None else op.context(candidate.context).compose(op.native)
    wanted, takes = (set(inspect.signature(function).parameters) for function in (whole, candidate.run))
    if wanted == takes:
        return []
    took, given = (", ".join(sorted(names)) for names in (takes, wanted))
    return [f"{module.__file__}: {candidate.id} takes ({took}), {op.id} gives ({given})."]


def _source_sha256(module: ModuleType, root: Path) -> str:
    """Hash of the module and of every module below `candidates/` that it imports, directly or not."""
    pending, files = [Path(str(module.__file__)).resolve()], set[Path]()
    while pending:
        file = pending.pop()
        if file in files:
            continue
        files.add(file)
        pending += [path for name in _imports(file) if (path := _candidate_file(name, root)) is not None]
    base = root.resolve()
    return files_sha256(base if all(base in file.parents for file in files) else Path("/"), files)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _candidate_file(name: str, root: Path) -> Path | None:
    if not name.startswith(f"{PACKAGE}."):
        return None
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    return path.resolve() if path.is_file() else None
