"""Which files a candidate, an op or its wirings are made of: themselves and what they import from their own
surroundings, by statement.

Its surroundings are the project (`candidates.*`), the package it belongs to, and for a file given on the command line
the folder it lies in. Files it names in a string, such as a `.cu` beside it, count too. Nothing is imported here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.sources import content_sha256, files_sha256

PACKAGE = "candidates"

_LONGEST_NAME = 200


def sources_sha256(file: Path, module: str, root: Path) -> str:
    """Hash of the files that the module `module`, loaded from `file`, is made of. `root` is the project's."""
    base = root.resolve()
    surroundings = (base, _import_root(file.resolve(), module))
    files = files_of(file.resolve(), surroundings)
    return files_sha256(base if all(base in found.parents for found in files) else Path("/"), files)


def op_sha256(root: Path, op: str, tolerance: Any) -> str:
    """Hash of what an op's isolated and in-context numbers depend on below `root`: every file of its folder but its
    wirings (they bind it to models and shape no µbench number), what these import, and its tolerance.

    The manifest's cases are left out: each measurement holds its own case, so a new case leaves the old evidence
    fresh. `tolerance` is the manifest's, as JSON values.
    """
    folder = (file for file in (root / PACKAGE / op).rglob("*") if _is_source(file))
    own = [file for file in folder if not file.name.startswith("wiring")]
    return content_sha256([_made_of_sha256(root, own), tolerance])


def wiring_sha256(root: Path, op: str) -> str:
    """Hash of an op's wirings and of what they import: what its end-to-end numbers depend on beside `op_sha256`."""
    return _made_of_sha256(root, (root / PACKAGE / op).glob("wiring*.py"))


def _made_of_sha256(root: Path, files: Iterable[Path]) -> str:
    return files_sha256(root, {found for file in files for found in files_of(file, (root,))})


def _is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")


def files_of(file: Path, roots: Sequence[Path]) -> set[Path]:
    """`file` and what it imports below the roots, directly or not; below the project only from `candidates`."""
    pending, found = [file], set[Path]()
    while pending:
        one = pending.pop()
        if one not in found:
            found.add(one)
            pending += _named(one, roots)
    return found


def _import_root(file: Path, module: str) -> Path:
    """The folder that absolute imports of the module's own package start from."""
    if module.startswith("harness_extra_"):
        return file.parent
    depth = module.count(".") + (file.name == "__init__.py")
    return file.parents[depth] if depth < len(file.parents) else file.parent


def _named(file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    if file.suffix != ".py":
        return
    said = _said(file.read_bytes())
    if said is None:
        return  # it does not parse: the catalog says so, and the file's own bytes are in the hash
    for folder in file.parents:  # a package's own file runs before its modules
        if not (package := folder / "__init__.py").is_file():
            break
        yield package
    project = roots[0]
    for level, names in said.imports:
        if level:
            if len(file.parents) >= level:
                yield from _modules(names, file.parents[level - 1])
            continue
        yield from _modules([name for name in names if name.startswith(f"{PACKAGE}.")], project)
        for root in roots[1:]:
            if root != project:
                yield from _modules(names, root)
    for text in said.texts:
        yield from _beside(file, text)


@dataclass(frozen=True)
class _Said:
    """What a Python source says of other files."""

    imports: tuple[tuple[int, tuple[str, ...]], ...]
    """For each import, the dots it begins with and the dotted names that may be modules."""
    texts: tuple[str, ...]
    """Strings that may be the name of a file."""


@lru_cache(maxsize=4096)
def _said(source: bytes) -> _Said | None:
    """None where it does not parse. Remembered by content: the ops share their providers."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    imports: list[tuple[int, tuple[str, ...]]] = []
    texts: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.append((0, tuple(alias.name for alias in node.names)))
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, [node.module, alias.name])) for alias in node.names]
            imports.append((node.level, (*names, *filter(None, [node.module]))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_name_a_file(node.value):
            texts[node.value] = None
    return _Said(tuple(dict.fromkeys(imports)), tuple(texts))


def _modules(names: Iterable[str], root: Path) -> Iterator[Path]:
    """The files of dotted names below `root`, the packages on the way included."""
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = root.joinpath(*parts[:end])
            yield from (found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file())


def _may_name_a_file(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_NAME and "." in text and not set(text) & set("\0\n")


def _beside(file: Path, text: str) -> Iterator[Path]:
    """A file beside `file` that a string names: the source of a kernel that is compiled or loaded at run time."""
    path = file.parent / text
    if file.parent in path.parents and ".." not in path.parts and path.is_file():
        yield path
