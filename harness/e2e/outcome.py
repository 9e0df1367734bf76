"""What `harness e2e` prints at its end: a table for each cell, with the reasons below it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from harness.report.e2e import gain, without_dynamic
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.verdict import Verdicts


def outcomes(verdicts: Verdicts, ops: tuple[str, ...], device_type: str) -> Iterator[RenderableType]:
    """Every cell of these ops on the device's kind, its newest sequence."""
    for row in verdicts.rows:
        for cell in row.cells:
            if cell.op in ops and cell.device.type == device_type:
                yield from _cell(cell)


def _cell(cell: CellVerdict) -> Iterator[RenderableType]:
    op = cell.op if cell.context is None else f"{cell.op} ({cell.context})"
    title = Text(f"{op} in {cell.workload}/{cell.component}", style="bold")
    if cell.ceiling_pct is not None:
        title.append(f"; leaving the op out gains {gain(cell.ceiling_pct)}")
    table = Table(title=title, title_justify="left", title_style="")
    for column in ("arm", "gain of the component", "verdict"):
        table.add_column(column, overflow="fold")
    arms = [*([cell.twin] if cell.twin is not None else []), *cell.candidates]
    for arm in arms:
        table.add_row(arm.id, gain(arm.gain_pct), str(arm.verdict))
    if cell.positive is not None:
        said = f"known positive of {cell.slowdown_pct:g} %"
        table.add_row(said, gain(cell.positive.gain_pct), str(cell.positive.verdict))
    for request in cell.compositions:
        table.add_row(f"{cell.leader}: {request.what}", gain(request.figures.gain_pct), str(request.figures.verdict))
    yield table
    yield from (Text(f"  {arm.id}: {arm.reason}") for arm in arms if arm.reason)
    if cell.dynamic_left_out:
        yield Text(f"  {without_dynamic(cell)}")
    if cell.reason:
        yield Text(f"  {cell.verdict}: {cell.reason}")
