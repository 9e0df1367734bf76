"""The verb `harness nightly`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from harness.choices import DeviceChoice, device_type_of
from harness.errors import ExitCode, UserError
from harness.paths import project_root

if TYPE_CHECKING:
    from harness.nightly.run import Request


def nightly(
    minutes: Annotated[float, typer.Option(help="the budget: it ends about then", min=1, max=1440)] = 60.0,
    op: Annotated[list[str] | None, typer.Option(help="only this op; all without it")] = None,
    device: Annotated[DeviceChoice, typer.Option(help="auto: cuda where there is one")] = DeviceChoice.AUTO,
    cell_budget: Annotated[
        float | None, typer.Option(help="seconds an end-to-end cell may take [300 on a GPU, 60 on a CPU]", min=10)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="most seconds of sampling per arm and case [2 on a GPU, 0.2 on a CPU]", min=0.05, max=600),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="print the newest night as Markdown, measure nothing")] = False,
) -> None:
    """Measure what is due within a budget: comparisons, end-to-end cells, reports, history. Resumes the same night."""
    from harness.nightly import record

    root = project_root()
    if show:
        print(record.markdown(record.load(record.newest(root))), end="")
        return
    from harness.nightly.run import NightRun

    out, err = Console(), Console(stderr=True)
    run = NightRun(_request(minutes, tuple(op or ()), device, cell_budget, seconds), root, out, err)
    try:
        night = run.run()
    except KeyboardInterrupt:
        err.print("interrupted: what was measured is in results/; the same command goes on from there")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    print(record.markdown(night), end="")
    for failure in night.failures:
        err.print(f"[red]failed[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if night.failures:
        raise typer.Exit(ExitCode.SOME_FAILED)


CELL_BUDGET_S = {"cuda": 300.0, "cpu": 60.0}
"""A rehearsal shows the way and decides nothing, so it is short."""


def _request(
    minutes: float, ops: tuple[str, ...], device: DeviceChoice, cell_budget: float | None, seconds: float | None
) -> Request:
    from harness.nightly.run import Request
    from harness.schema.manifest import readable_manifests
    from harness.survey import survey

    root = project_root()
    manifests, problems = readable_manifests(root / "shapes")
    if not manifests:
        raise UserError("\n".join(problems))
    if unknown := [op for op in ops if op not in manifests]:
        raise UserError(f"--op {unknown[0]}: there is no such manifest in order; there are {', '.join(manifests)}.")
    manifests = {op: of for op, of in manifests.items() if op in (ops or manifests)}
    found = survey(root, tuple(manifests))
    unusable = {
        op: found_op.error or " ".join(found_op.manifest)
        for op in manifests
        if (found_op := next(one for one in found.ops if one.op == op)).error or found_op.manifest
    }
    device_type = device_type_of(device, found.device_type)
    return Request(
        budget_min=minutes,
        device_type=device_type,
        manifests=manifests,
        cell_budget_s=cell_budget or CELL_BUDGET_S[device_type],
        seconds_per_arm=seconds,
        broken=found.broken,
        unusable=unusable,
        problems=tuple(line for problem in problems for line in problem.splitlines()),
    )
