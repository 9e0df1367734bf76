"""The command line: the verbs, nothing else. Nothing here imports torch before a verb needs it.

Exit codes: 0 done · 2 bad input, nothing run · 3 nothing selected · 4 measured, but some rows failed · 5 the machine
cannot measure · 130 interrupted, what was measured is kept.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from harness import posting
from harness.choices import DeviceChoice, device_type_of
from harness.e2e.verb import e2e
from harness.errors import ExitCode, UserError
from harness.export.command import export
from harness.history.command import compare, confirm, history
from harness.inventory.command import inventory
from harness.nightly.command import nightly
from harness.paths import project_root, require_places

if TYPE_CHECKING:
    from harness.schema.manifest import Manifest
    from harness.schema.verdict import Verdicts

app = typer.Typer(
    help=__doc__.split("\n\n")[1],
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)


_EXTRA_HELP = "module or .py file with more candidates"


def _manifest(op: str) -> Manifest:
    from harness.schema.manifest import load_manifest

    folder = project_root() / "shapes"
    known = {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.is_file()}
    if op not in known:
        raise UserError(f"there is no manifest shapes/{op}.yaml; the ops with one are {', '.join(known) or 'none'}.")
    return load_manifest(known[op])


def _verdicts() -> Verdicts:
    from harness.report import recompute

    return recompute(project_root())


@app.command("list")
def list_(
    op: Annotated[str | None, typer.Argument(help="one op; all without it")] = None,
    candidates: Annotated[list[str] | None, typer.Option(help=_EXTRA_HELP)] = None,
) -> None:
    """Ops and candidates: kind, contract, and whether each can run here."""
    from harness import catalog
    from harness.listing import op_tables
    from harness.survey import survey

    root = project_root()
    found = survey(root, catalog.op_ids(root) if op is None else (op,), tuple(candidates or ()))
    if op is not None:
        found.of(op)
    for table in op_tables(found):
        out.print(table, soft_wrap=isinstance(table, str), highlight=False)
    _print_problems([*found.problems, *(line for one in found.ops for line in (one.error, *one.problems) if line)])


@app.command()
def check(
    candidates: Annotated[list[str] | None, typer.Option(help=_EXTRA_HELP)] = None,
) -> None:
    """Check every manifest, candidate and claim; one sentence for each thing that is wrong."""
    from harness.listing import project_problems

    ops, problems = project_problems(project_root(), tuple(candidates or ()))
    if problems:
        raise UserError("\n".join(problems))
    out.print(f"{ops} ops are in order", highlight=False)


@app.command()
def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="the reference of every file instead, as in docs/schema.md")
    ] = False,
) -> None:
    """JSON Schema of the shape manifests, for editors."""
    if markdown:
        from harness.schema import reference

        print(reference.markdown(), end="")
        return
    from harness.schema.manifest import json_schema

    print(json.dumps(json_schema(), indent=2))


@app.command()
def bench(
    ops: Annotated[list[str], typer.Argument(help="ops to measure")],
    case: Annotated[list[str] | None, typer.Option(help="only cases whose id matches this glob")] = None,
    context: Annotated[str | None, typer.Option(help="only this context")] = None,
    ranks: Annotated[int | None, typer.Option(help="only cases of so many ranks (devices)", min=1)] = None,
    device: Annotated[DeviceChoice, typer.Option(help="auto: cuda where there is one")] = DeviceChoice.AUTO,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what results/ already holds")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="most seconds of sampling per arm and case [2 on a GPU, 0.2 on a CPU]", min=0.05, max=600),
    ] = None,
    cross_checks: Annotated[
        bool, typer.Option("--cross-checks", help="also time with do_bench and CUPTI, for comparison")
    ] = False,
    candidates: Annotated[list[str] | None, typer.Option(help=_EXTRA_HELP)] = None,
) -> None:
    """Measure ops, append to results/, refresh reports/. Resumes where the last run stopped."""
    from harness import microbench
    from harness.progress import LiveProgress
    from harness.protocol import Settings
    from harness.store import Store
    from harness.survey import survey

    root = project_root()
    manifests = {op: _manifest(op) for op in ops}
    extra = tuple(candidates or ())
    found = survey(root, tuple(manifests), extra)
    if problems := [*(line for op in manifests for line in found.of(op).manifest), *found.problems]:
        raise UserError("\n".join(problems))
    device_type = device_type_of(device, found.device_type)
    selection = microbench.Selection(tuple(case or ()), context, ranks)
    selected = [microbench.tasks_of(manifest, device_type, selection) for manifest in manifests.values()]
    if not any(selected):
        err.print("nothing selected: --case, --context and --ranks together match no case", highlight=False)
        raise typer.Exit(ExitCode.NOTHING_SELECTED)
    require_places(root)
    failures: list[str] = []
    ran = runnable = False
    try:
        for op, manifest in manifests.items():
            with LiveProgress(err, op) as progress:
                outcome = microbench.bench(
                    manifest,
                    root,
                    Store(root / "results"),
                    device_type,
                    selection=selection,
                    settings=Settings(
                        seconds_per_arm=seconds or microbench.SECONDS_PER_ARM[device_type], cross_checks=cross_checks
                    ),
                    extra=extra,
                    broken=found.broken,
                    fresh=fresh,
                    progress=progress,
                    on_measured=progress.measured,
                    on_planned=progress.planned,
                )
            ran = True
            runnable |= outcome.runnable
            failures += outcome.failures
            _print_problems(outcome.problems)
            if extra:  # whoever names a candidate waits for it
                failures += outcome.problems
    except KeyboardInterrupt:
        err.print("interrupted: what was measured is in results/; the same command goes on from there")
        ran = True
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        # Also after Ctrl-C: what is stored is decided and printed.
        if ran:
            failures += _decide_and_print(root, tuple(manifests), device_type)
    for failure in failures:
        err.print(f"[red]failed[/] {escape(failure)}", highlight=False)
    if failures:
        raise typer.Exit(ExitCode.SOME_FAILED)
    if not runnable:
        raise typer.Exit(ExitCode.UNFIT)


def _decide_and_print(root: Path, ops: tuple[str, ...], device_type: Literal["cuda", "cpu"]) -> list[str]:
    """Refresh reports/ and print each op's outcomes; why reports/ could not be refreshed, a sentence each."""
    from harness.report import refresh
    from harness.report.console import outcome_table

    verdicts, problems = refresh(root, ops)
    for op in ops:
        out.print(outcome_table(verdicts, op, device_type))
    return problems


def _print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        err.print(f"[yellow]problem[/] {escape(problem)}", highlight=False, soft_wrap=True)


app.command()(e2e)
app.command()(nightly)
app.command()(history)
app.command()(confirm)
app.command()(compare)
app.command()(export)
app.command()(inventory)


@app.command()
def decide() -> None:
    """Recompute every verdict from results/ and write reports/."""
    from harness.report import write_all

    root = project_root()
    for path in write_all(_verdicts(), root / "reports"):
        out.print(str(path.relative_to(root)), highlight=False)


app.command()(posting.matrix)
app.command()(posting.post)
app.command()(posting.subissue)
app.command()(posting.pr)


@app.command()
def verify() -> None:
    """Recompute reports/ from results/ and compare byte for byte."""
    from harness.report import verify as differences_of

    differences = differences_of(project_root())
    for difference in differences:
        err.print(f"[red]differs[/] {escape(difference)}", highlight=False)
    if differences:
        raise typer.Exit(ExitCode.SOME_FAILED)
    out.print("reports/ is what results/ says", highlight=False)


@app.command()
def doctor() -> None:
    """What this machine is, what each candidate lacks here, and whether the clock can be trusted."""
    from harness.doctor import examine

    if not examine(out, project_root()):
        raise typer.Exit(ExitCode.UNFIT)


def main() -> None:
    """Entry point of `harness`: errors of the user become one sentence and an exit code, and the code is said."""
    code = _run()
    if code in _SAID:
        # `make` turns every code but 0 into its own 2.
        err.print(f"harness: exit {code:d} ({_SAID[ExitCode(code)]})", highlight=False, soft_wrap=True)
    sys.exit(code)


_SAID = {
    ExitCode.BAD_INPUT: "bad input",
    ExitCode.NOTHING_SELECTED: "nothing selected",
    ExitCode.SOME_FAILED: "done, but some of it failed or was left",
    ExitCode.UNFIT: "this machine cannot measure now",
    ExitCode.INTERRUPTED: "interrupted",
}


def _run() -> int:
    from harness.errors import UnfitError

    try:
        _refuse_undecodable(sys.argv[1:])
        try:
            app()
        finally:
            if sys.stdout is not None:  # as after `>&-`
                sys.stdout.flush()
    except UserError as error:
        for line in str(error).splitlines():
            err.print(f"[red]error[/] {escape(line)}", highlight=False, soft_wrap=True)
        return ExitCode.BAD_INPUT
    except UnfitError as error:
        err.print(f"[red]unfit[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return ExitCode.UNFIT
    except OSError as error:
        if error.filename is None and error.errno in _OUTPUT_LOST:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python tries again as it ends, and says so at length
            err.print(f"[red]unfit[/] what this prints cannot be written ({error.strerror})", highlight=False)
            return ExitCode.UNFIT
        if error.filename is None or error.errno is None:
            raise
        err.print(f"[red]unfit[/] {escape(f'{error.filename}: {error.strerror}')}", highlight=False, soft_wrap=True)
        return ExitCode.UNFIT
    except UnicodeEncodeError as error:
        if error.encoding.lower().replace("_", "-") in ("utf-8", "utf8"):
            raise
        letter = escape(repr(error.object[error.start]))
        err.print(
            f"[red]unfit[/] the output's encoding {error.encoding} lacks {letter}; set PYTHONIOENCODING=utf-8.",
            highlight=False,
            soft_wrap=True,
        )
        return ExitCode.UNFIT
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit as ended:
        if isinstance(ended.__context__, typer.Abort):  # what Ctrl-C becomes inside the library
            return ExitCode.INTERRUPTED
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    return ExitCode.DONE


_OUTPUT_LOST = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


def _refuse_undecodable(words: Iterable[str]) -> None:
    """Raises UserError for a word of bytes that are no UTF-8: messages between processes are text."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{word!r} is not UTF-8; name things in UTF-8.") from error
