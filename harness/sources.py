"""Content hashes: of JSON values, and of the sources that shaped a number. Imports neither torch nor a candidate."""

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
    "harness/pipe_link.py",
    "harness/rank_group.py",
    "harness/rank_link.py",
    "harness/measure/**/*.py",
    "harness/stats/orders.py",
    "harness/stats/estimators.py",
    "harness/stats/distributions.py",
    "harness/stats/units.py",
)
"""Globs of the harness sources that shape a measured number. Statistics are among them where they order the arms and
say when to stop sampling; verdicts and reports are not."""

MEASURING_E2E = (
    "harness/e2e/**/*.py",
    "harness/wiring.py",
    "harness/worker_line.py",
    "harness/pipe_link.py",
    "harness/processes.py",
    "harness/rank_group.py",
    "harness/rank_link.py",
    "harness/measure/arms.py",
    "harness/measure/link.py",
    "harness/measure/ranks.py",
    "harness/measure/train.py",
    "harness/stats/sequences.py",
    "harness/stats/rule.py",
)
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
