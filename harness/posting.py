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
    from harness.schema.verdict import RowVerdict, Verdicts

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
    from harness.report.matrix import matrix_markdown

    if file is not None and not check:
        raise UserError(f"{file}: a file is only checked; write `harness matrix --check {file}`.")
    verdicts = _recalled()
    _require_device(verdicts, device)
    if check:
        _check(verdicts, file, device)
    else:
        print(matrix_markdown(verdicts, _root_url(base_url), device), end="")
        _warn_of_relative_links(base_url)


def _recalled() -> Verdicts:
    from harness.report import recall

    return recall(project_root(), lambda file: print(f"reading results/{file}", file=sys.stderr))


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


def _warn_of_relative_links(base_url: str) -> None:
    """Last, where a terminal still shows it."""
    if not base_url:
        print(
            "links are relative and break where this is pasted: give --base-url "
            "https://github.com/OWNER/REPOSITORY/blob/COMMIT",
            file=sys.stderr,
        )


Op = Annotated[str, typer.Argument(help="id of the op, as in shapes/")]


def post(op: Op, device: Device = None, base_url: BaseUrl = "", output: Output = None) -> None:
    """Print the results post of an op: conclusion, platform, tables, end to end, what was not tested, how to repeat."""
    from harness.report.post import post_markdown

    _write(post_markdown(_row(op, device), _root_url(base_url)), output, base_url)


def subissue(op: Op, device: Device = None, base_url: BaseUrl = "", output: Output = None) -> None:
    """Print the sub-issue of an op that is ❌ end to end: why native + torch.compile stays, with the numbers."""
    from harness.report.subissue import subissue_markdown

    _write(subissue_markdown(_row(op, device), _root_url(base_url)), output, base_url)


def pr(op: Op, device: Device = None, base_url: BaseUrl = "", output: Output = None) -> None:
    """Print the text of the pull request for an op that is ✅ end to end, with its patch plan."""
    from harness.report.pr import pr_markdown, require_won

    row = _row(op, device)
    require_won(row)
    from harness.patch_plan import patch_plan  # imports torch and the model's library
    from harness.survey import survey

    root = project_root()
    plan = patch_plan(root, row, survey(root, (op,)).broken)
    _write(pr_markdown(row, plan, _root_url(base_url)), output, base_url)


def _row(op: str, device: str | None) -> RowVerdict:
    """The op's row on one kind of GPU: the one named, or the only one there is evidence of."""
    verdicts = _recalled()
    _require_device(verdicts, device)
    row = next((row for row in verdicts.rows if row.op == op), None)
    if row is None:
        known = ", ".join(row.op for row in verdicts.rows)
        raise UserError(f"there is no manifest shapes/{op}.yaml; the ops with one are {known}.")
    of = [*(card.device for card in row.cards), *(cell.device for cell in row.cells)]
    keys = sorted({one.key for one in of if one.type == "cuda"})
    if device is None and len(keys) > 1:
        raise UserError(
            f"{op} was measured on several kinds of GPUs and a post is of one; add --device {' or '.join(keys)}."
        )
    return row if device is None else row.on(device)


def _write(markdown: str, output: Path | None, base_url: str) -> None:
    if output is None:
        print(markdown, end="")
        _warn_of_relative_links(base_url)
        return
    try:
        output.write_text(markdown, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}; name a file in a folder that can be written.") from None
    print(output)
    _warn_of_relative_links(base_url)
