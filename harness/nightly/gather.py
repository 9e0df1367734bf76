"""`make gather FROM=<a results folder>`: take up the evidence of another tree, such as a branch of earlier nights.

Lines that are not here yet are added at the end of their file; nothing here is changed or taken away.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.nightly.record import FOLDER
from harness.paths import project_root
from harness.store import ProcessStore, Store


def gather(source: Path, results: Path) -> int:
    """Add the lines of `source` that `results` lacks, and its nights; how many lines were added.

    Raises UserError for a folder that is not there, and for a damaged line, before anything is added.
    """
    if not source.is_dir():
        raise UserError(f"{source}: there is no such folder; FROM names the results/ of another tree.")
    Store(source).load()
    ProcessStore(source).load()
    added = 0
    for file in sorted(source.rglob("*.jsonl")):
        here = results / file.relative_to(source)
        known = set(here.read_bytes().splitlines()) if here.exists() else set()
        new = [line for line in file.read_bytes().splitlines() if line not in known]
        if new:
            here.parent.mkdir(parents=True, exist_ok=True)
            with here.open("ab") as output:
                output.write(b"".join(line + b"\n" for line in new))
        added += len(new)
    for file in sorted((source / FOLDER).glob("*.json")):
        here = results / FOLDER / file.name
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, here)
    return added


def main(arguments: list[str]) -> int:
    """Entry point; the exit code."""
    if len(arguments) != 1:
        print("error: name the results folder to take up: make gather FROM=<folder>", file=sys.stderr)
        return ExitCode.BAD_INPUT
    try:
        added = gather(Path(arguments[0]), project_root() / "results")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    print(f"{added} lines taken up from {arguments[0]}")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
