"""Where things lie below the project's root."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.errors import UnfitError

WORK_FOLDER = ".bench"
"""Below the project's root, never committed: worker logs, compile caches, and the index of the store."""


def project_root() -> Path:
    """The folder that holds `shapes/`: the working folder where it does, else the checkout this package is in."""
    here = Path.cwd()
    return here if any((here / "shapes").glob("*.yaml")) else package_root()


def package_root() -> Path:
    """The folder that holds the `harness` package that is running."""
    return Path(__file__).resolve().parent.parent


def keep_whole(file: Path, content: bytes) -> None:
    """Write a file whole or not at all. Raises OSError that names it where it cannot be written."""
    half = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        half.write_bytes(content)
        half.replace(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:  # after Ctrl-C too
        with suppress(OSError):
            half.unlink(missing_ok=True)


def require_places(root: Path) -> None:
    """Raises UnfitError before minutes are spent on what cannot be kept below the project's root."""
    for folder in (root / "results", root / "reports", root / WORK_FOLDER):
        require_writable(folder, "nothing was measured.")


def require_writable(folder: Path, else_: str) -> None:
    """Raises UnfitError, saying `else_`, where the folder cannot be made or takes no bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
    except OSError as error:
        raise UnfitError(f"{folder}: cannot be written ({error.strerror}); {else_}") from error


def keep_if_possible(file: Path, content: bytes) -> None:
    """Write a file that may be lost, with its folder: whole or not at all, and not where it cannot be written."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        keep_whole(file, content)
