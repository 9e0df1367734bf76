"""`make gather FROM=<a results folder>`: take up the evidence of another tree, such as a branch of earlier nights.

Lines that are not here yet are added at the end of their file; nothing here is changed or taken away.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from harness.errors import ExitCode, UnfitError, UserError
from harness.jsonl import add_lines, whole_lines
from harness.nightly.record import FOLDER
from harness.paths import project_root
from harness.store import ProcessStore, Store


def gather(source: Path, results: Path) -> int:
    """Add the lines of `source` that `results` lacks, and its nights; how many lines were added.

    Raises UserError for a folder that is not there, and for a damaged line, before anything is added; UnfitError where
    the disk does not take a file's lines.
    """
    if not source.is_dir():
        raise UserError(f"{source}: there is no such folder; FROM names the results/ of another tree.")
    Store(source).load()
    ProcessStore(source).load()
    added = 0
    for file in (*sorted(source.glob("*/*.jsonl")), *sorted(source.glob("*/e2e/*.jsonl"))):
        if lines := whole_lines(file).splitlines():
            added += add_lines(results / file.relative_to(source), lines)
    for file in sorted((source / FOLDER).glob("*.json")):
        here = results / FOLDER / file.name
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, here)
    return added


def main(arguments: list[str]) -> int:
    """Entry point; the exit code."""
    if len(arguments) != 1 or not arguments[0].strip():
        print("error: name the results folder to take up: make gather FROM=<folder>", file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        added = gather(Path(arguments[0]), project_root() / "results")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    except UnfitError as error:
        print(f"unfit: {error}", file=sys.stderr)
        return ExitCode.UNFIT
    print(f"{added} lines taken up from {arguments[0]}")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
