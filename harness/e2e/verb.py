"""The verb `harness e2e`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from harness.choices import DeviceChoice, device_type_of
from harness.errors import ExitCode, UserError
from harness.paths import project_root


def e2e(
    ops: Annotated[
        list[str] | None, typer.Argument(help="ops to measure in real models [those of shapes/orders/evidence.yaml]")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="only workloads, or workload/component, that match this glob")
    ] = None,
    device: Annotated[DeviceChoice, typer.Option(help="auto: cuda where there is one")] = DeviceChoice.AUTO,
    budget: Annotated[float, typer.Option(help="seconds a cell may take", min=10, max=36_000)] = 300.0,
    minutes: Annotated[
        float | None, typer.Option(help="begin nothing that would not end within so many minutes", min=0.1)
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="start the sequences over")] = False,
    arm: Annotated[
        list[str] | None, typer.Option(help="candidate id, instead of the leader of each kind by the µbench")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="folder with real weights; random ones without it")] = None,
    lpips: Annotated[
        str | None, typer.Option(help="torch hub folder with AlexNet's weights, for LPIPS beside --checkpoint")
    ] = None,
    slowdown: Annotated[
        float,
        typer.Option(help="percent; adds the baseline slowed by so much, which it must win against", min=0, max=50),
    ] = 0.0,
    candidates: Annotated[list[str] | None, typer.Option(help="module or .py file with more candidates")] = None,
) -> None:
    """Wire candidates into real models, append to results/, refresh reports/. Resumes where the last run stopped.

    Without an op: the cells of shapes/orders/evidence.yaml one after another, but those that another card of the same
    kind has finished.
    """
    from harness.e2e.command import Request, checked, run
    from harness.e2e.order import load_order
    from harness.e2e.protocol import CellSettings
    from harness.survey import survey

    root, extra, out, err = project_root(), tuple(candidates or ()), Console(), Console(stderr=True)
    order = load_order(root) if not ops else ()
    named = tuple(dict.fromkeys(ops or (entry.op for entry in order)))
    checked(root, named, checkpoint, lpips)
    found = survey(root, named, extra)
    if problems := [*(line for op in named for line in found.of(op).manifest), *found.problems]:
        raise UserError("\n".join(problems))
    request = Request(
        ops=named,
        models=tuple(model or ()),
        device_type=device_type_of(device, found.device_type),
        settings=CellSettings(budget_s=budget, slowdown_pct=slowdown),
        fresh=fresh,
        arms=tuple(arm or ()),
        checkpoint=checkpoint,
        extra=extra,
        broken=found.broken,
        order=order,
        minutes=minutes,
        lpips=lpips,
    )
    try:
        ran = run(request, root, out, err)
    except KeyboardInterrupt:
        err.print("interrupted: the processes that finished are in results/; the same command goes on from there")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    for needs in ran.lacking:
        err.print(f"[yellow]problem[/] {escape(needs)}", highlight=False, soft_wrap=True)
    for left in ran.left:
        err.print(f"[yellow]left[/] {escape(left)}", highlight=False, soft_wrap=True)
    for failure in ran.failures:
        err.print(f"[red]failed[/] {escape(failure)}", highlight=False, soft_wrap=True)
    if ran.failures or ran.left:
        raise typer.Exit(ExitCode.SOME_FAILED)
    if not ran.runnable:
        raise typer.Exit(ExitCode.UNFIT)
