"""The verbs that print what people paste: the matrix, a results post, a sub-issue, a pull request's text."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import UserError
from harness.paths import project_root

if TYPE_CHECKING:
    from harness.schema.verdict import Verdicts

_DEVICE_HELP = "only the evidence of this kind of GPU: the name of a folder of results/"
_BASE_URL_HELP = "URL of the project's root at a commit, for links that leave the repository"
_OUTPUT_HELP = "file to write instead of the terminal"

Device = Annotated[str | None, typer.Option(help=_DEVICE_HELP, metavar="KEY")]
BaseUrl = Annotated[str, typer.Option(help=_BASE_URL_HELP, metavar="URL")]
Output = Annotated[Path | None, typer.Option(help=_OUTPUT_HELP, metavar="FILE")]


def matrix(
    file: Annotated[Path | None, typer.Argument(help="with --check: a matrix as pasted, not reports/")] = None,
    device: Device = None,
    base_url: BaseUrl = "",
    check: Annotated[
        bool, typer.Option("--check", help="do symbols written by hand say what the evidence says?")
    ] = False,
) -> None:
    """Print the RFC's tracking matrix, ready to paste; or check one that was edited by hand."""
    from harness.report import recall
    from harness.report.matrix import matrix_markdown

    if file is not None and not check:
        raise UserError(f"{file}: a file is only checked; write `harness matrix --check {file}`.")
    verdicts = recall(project_root(), lambda file: print(f"reading results/{file}", file=sys.stderr))
    _require_device(verdicts, device)
    if check:
        _check(verdicts, file, device)
    else:
        print(matrix_markdown(verdicts, _root_url(base_url), device), end="")


def _check(verdicts: Verdicts, file: Path | None, device: str | None) -> None:
    from harness.report.matrix import file_name
    from harness.report.matrix_check import contradictions

    reports = project_root() / "reports"
    if file is not None:
        files = {file: device}
    elif device is not None:
        files = {reports / file_name(device): device}
    else:
        files = {reports / "matrix.md": None, **{reports / file_name(key): key for key in verdicts.devices}}
    problems = []
    for path, key in files.items():
        of = verdicts if key is None else verdicts.on(key)
        problems += contradictions(_read(path), _shown(path), of)
    if problems:
        raise UserError("\n".join(problems))
    print(f"{', '.join(map(_shown, files))}: every symbol is what the evidence says")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{_shown(path)}: no such file; name a matrix as pasted, or run `harness decide`.") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise UserError(f"{_shown(path)}: is no text file; name a file with the matrix in Markdown.") from None


def _shown(path: Path) -> str:
    root = project_root()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _require_device(verdicts: Verdicts, device: str | None) -> None:
    if device is not None and device not in verdicts.devices:
        known = ", ".join(verdicts.devices) or "none yet"
        raise UserError(f"--device {device}: there is no evidence of such a GPU; results/ has {known}.")


def _root_url(base_url: str) -> str:
    """The URL without its last slash."""
    if base_url and not re.fullmatch(r"https?://[^\s<>()|\\]+", base_url):
        raise UserError(
            f"--base-url {base_url}: is no URL; write e.g. https://github.com/OWNER/REPOSITORY/blob/COMMIT."
        )
    return base_url.rstrip("/")
