"""Content hashes: of JSON values, and of the sources that shaped a number. Imports neither torch nor a candidate."""

import ast
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import UserError

MEASURING = (
    "harness/op.py",
    "harness/protocol.py",
    "harness/microbench.py",
    "harness/isolate.py",
    "harness/worker_line.py",
    "harness/prebuild.py",
    "harness/worker.py",
    "harness/processes.py",
    "harness/measure/**/*.py",
    "harness/stats/orders.py",
    "harness/stats/estimators.py",
    "harness/stats/units.py",
)
"""Globs of the harness sources that shape a measured number. Statistics are among them where they order the arms and
say when to stop sampling; verdicts and reports are not."""

MEASURING_E2E = ("harness/e2e/**/*.py", "harness/wiring.py", "harness/worker_line.py", "harness/measure/arms.py")
"""The same for the end-to-end stage, beside what the op and its wiring are made of."""

_PIN = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*==\s*([^\s;#]+)")


def compact_json(value: Any, *, sort_keys: bool = False) -> str:
    """JSON text without spaces, keys in their own order or sorted. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_sha256(value: Any) -> str:
    """Hash of JSON values that does not depend on the order of keys."""
    return text_sha256(compact_json(value, sort_keys=True))


def text_sha256(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def files_sha256(root: Path, files: Iterable[Path]) -> str:
    """One hash of the files' names below `root` and their contents, whatever order they come in."""
    digest = hashlib.sha256()
    for name, file in sorted((file.relative_to(root).as_posix(), file) for file in files):
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def harness_sha256(root: Path, patterns: Iterable[str] = MEASURING) -> str:
    """Hash of the harness sources that shape a measured number (`MEASURING`, or `MEASURING_E2E`)."""
    return files_sha256(root, {file for pattern in patterns for file in root.glob(pattern)})


def e2e_sha256(package_root: Path, root: Path, op: str) -> str:
    """Hash of what an op's end-to-end numbers depend on beside `op_sha256`: this stage's sources, the op's wirings, and
    every module of `candidates` that these import, directly or not.

    `package_root` is where the running harness lies, `root` the project.
    """
    wirings = files_sha256(root, _with_imported(root, set((root / "candidates" / op).glob("wiring*.py"))))
    return content_sha256([harness_sha256(package_root, MEASURING_E2E), wirings])


def op_sha256(root: Path, op: str, tolerance: Any) -> str:
    """Hash of what an op's isolated and in-context numbers depend on below `root`: every file of its folder but its
    wirings (they bind it to models and shape no µbench number), every module of `candidates` that these import,
    directly or not, and its tolerance.

    The manifest's cases are left out: each measurement holds its own case, so a new case leaves the old evidence
    fresh. `tolerance` is the manifest's, as JSON values.
    """
    folder = (file for file in (root / "candidates" / op).rglob("*") if _is_source(file))
    own = {file for file in folder if not file.name.startswith("wiring")}
    return content_sha256([files_sha256(root, _with_imported(root, own)), tolerance])


def _with_imported(root: Path, files: set[Path]) -> set[Path]:
    """`files` and the modules below `root/candidates` that they import by statement, transitively."""
    found = set(files)
    todo = [file for file in files if file.suffix == ".py"]
    while todo:
        new = _imported(root, todo.pop()) - found
        found |= new
        todo += new
    return found


def _imported(root: Path, file: Path) -> set[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # the catalog says so; the file's own bytes are in the hash
    names: set[str] = set()
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in names if name.split(".")[0] == "candidates"]
    modules = {root.joinpath(*name[:end]) for name in parts for end in range(1, len(name) + 1)}
    files = {path for module in modules for path in (module.with_suffix(".py"), module / "__init__.py")}
    return {path for path in files if path.is_file()}


def pins(file: Path) -> dict[str, str]:
    """The `name==version` lines of a constraints file, names in lower case with dashes.

    Raises UserError when the file is missing.
    """
    if not file.is_file():
        raise UserError(f"{file}: no such file; it pins the versions that evidence is compared with.")
    found = (_PIN.match(line) for line in file.read_text(encoding="utf-8").splitlines())
    return {normal_name(match[1]): match[2] for match in found if match}


def normal_name(package: str) -> str:
    """A distribution name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _is_source(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
