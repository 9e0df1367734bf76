"""`harness history` and `harness confirm`: what has changed over the nights, and how far that is believed."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from harness.errors import ExitCode, UserError
from harness.paths import project_root

if TYPE_CHECKING:
    from harness.schema.history import Change, Series

out = Console()
err = Console(stderr=True)

Ops = Annotated[list[str] | None, typer.Argument(help="ops; all without it")]
Where = Annotated[str | None, typer.Option(help="only cases, or workload/component, that match this glob")]


def history(
    ops: Ops = None,
    where: Where = None,
    as_json: Annotated[bool, typer.Option("--json", help="print series and changes as JSON")] = False,
) -> None:
    """Where times, ratios and gains have changed over the runs in results/: suspected, or confirmed by the rule."""
    import json

    series, changes = _history(ops, where)
    if as_json:
        found = {
            "series": [one.model_dump(mode="json") for one in series],
            "changes": [one.model_dump(mode="json") for one in changes],
        }
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    from harness.history.changes import MIN_RUNS

    long_enough = sum(len(one.runs) >= MIN_RUNS for one in series)
    out.print(
        f"{len(series)} series, {long_enough} of at least {MIN_RUNS} runs, {len(changes)} change points",
        highlight=False,
    )
    for change in changes:
        out.print(f"[bold]{change.standing}[/] {escape(change.key.name)}", highlight=False, soft_wrap=True)
        for line in lines_of(change):
            out.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


def lines_of(change: Change) -> list[str]:
    """What is known of a change, a line each."""
    from harness.schema.history import said

    old, new = change.before, change.after
    return [
        f"{change.key.device_key}: {said(change.shift_log_pct)} since {new.started_at} "
        f"({change.runs_before} runs before, {change.runs_after} after)",
        f"changed: {'; '.join(change.differs) or 'nothing that is recorded'}",
        f"last before: results/{old.evidence.file}:{old.evidence.line} of commit {old.git_sha or 'none'}",
        f"first after: results/{new.evidence.file}:{new.evidence.line} of commit {new.git_sha or 'none'}",
        change.why,
    ]


def confirm(
    ops: Annotated[list[str], typer.Argument(help="ops whose suspected changes are to be confirmed")],
    where: Where = None,
    arm: Annotated[str | None, typer.Option(help="only the change of this arm")] = None,
    old_python: Annotated[str | None, typer.Option(help="interpreter with the packages before the change")] = None,
    new_python: Annotated[str | None, typer.Option(help="interpreter with the packages after it")] = None,
) -> None:
    """Run old and new build of each suspected change in turn, from their commits, until the rule decides."""
    from harness.history.rerun import confirm as make
    from harness.schema.history import Standing

    _, changes = _history(ops, where)
    open_ones = [one for one in changes if one.standing is Standing.SUSPECTED and (arm is None or one.key.arm == arm)]
    if not open_ones:
        err.print("nothing is suspected there", highlight=False)
        raise typer.Exit(ExitCode.NOTHING_SELECTED)
    failures = []

    def say(line: str) -> None:
        err.print(f"  {escape(line)}", highlight=False, soft_wrap=True)

    try:
        for number, change in enumerate(open_ones, start=1):
            err.print(f"[{number}/{len(open_ones)}] {escape(change.key.name)}", highlight=False, soft_wrap=True)
            try:
                change = make(change, project_root(), old_python, new_python, say)
            except UserError as error:
                failures.append(str(error))
                continue
            out.print(f"[bold]{change.standing}[/] {escape(change.sentence)}: {escape(change.why)}", soft_wrap=True)
    except KeyboardInterrupt:
        err.print("interrupted: the runs that ended are in results/; the same command goes on from there")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    for failure in failures:
        err.print(f"[red]failed[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if failures:
        raise typer.Exit(ExitCode.SOME_FAILED)


def compare(
    a: Annotated[str, typer.Argument(help="results/, a folder or file of it, or a git revision")],
    b: Annotated[str, typer.Argument(help="the same, to compare with")],
    op: Annotated[str | None, typer.Option(help="only this op")] = None,
) -> None:
    """Compare two runs or commits of results/, arm by arm: ratio with interval, and what differs between them."""
    from rich.table import Table

    from harness.history.two_runs import compare_runs, measurements_of
    from harness.report.text import significant

    root = project_root()
    sides = [[one for one in measurements_of(what, root) if op is None or one.measurement.op == op] for what in (a, b)]
    found = compare_runs(*sides)
    table = Table(title=f"A {a}, B {b}: {found.device}", title_justify="left")
    for column in ("op", "case", "arm", "A µs", "B µs", "t(A) / t(B) [95 %]"):
        table.add_column(column, overflow="fold", justify="right" if "µs" in column else "left")
    for one in found.arms:
        ratio, lower, upper = one.ratio
        case = one.case + (f" in {one.context}" if one.context else "")
        said = f"{ratio:.3f}× [{lower:.3f}, {upper:.3f}]"
        table.add_row(one.op, case, one.arm, significant(one.a_us), significant(one.b_us), said)
    out.print(table)
    out.print("Over 1: B takes less time. The interval allows 0.20 % for the difference between two processes.")
    for line in found.differs or ("nothing that is recorded",):
        out.print(f"differs: {escape(line)}", highlight=False, soft_wrap=True)
    for name, only in (("A", found.only_a), ("B", found.only_b)):
        if only:
            out.print(f"only in {name}: {escape(', '.join(only))}", highlight=False, soft_wrap=True)


def _history(ops: Sequence[str] | None, where: str | None) -> tuple[list[Series], list[Change]]:
    from rich.progress import Progress

    from harness.history import history as compute

    root = project_root()
    known = sorted(file.stem for file in (root / "shapes").glob("*.yaml"))
    for op in ops or ():
        if op not in known:
            raise UserError(f"there is no manifest shapes/{op}.yaml; the ops with one are {', '.join(known)}.")
    with Progress(console=err, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("reading results/", total=None)
        series, changes = compute(
            root, ops or None, lambda done, total: progress.update(task, completed=done, total=total)
        )
    if where is not None:
        series = [one for one in series if fnmatch.fnmatchcase(one.key.where, where)]
        changes = [one for one in changes if fnmatch.fnmatchcase(one.key.where, where)]
    return series, changes
