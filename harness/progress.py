"""What a person sees while a run measures: one live line with an ETA on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from harness.isolate import Progress
from harness.schema.measurement import EnvironmentRecord, Measurement
from harness.schema.vocabulary import ArmStatus, Kind, Role, RunStatus


class LiveProgress(Progress):
    """Shows the comparison, arm and phase at work; prints a line for each finished comparison."""

    def __init__(self, console: Console, op: str) -> None:
        self.console = console
        self.op = op
        self.total = 0
        self.done = 0
        self._current = ""
        self._bar = RichProgress(
            TextColumn("[bold]{task.fields[op]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[step]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, op=op, step="starting the worker")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def planned(self, to_measure: int, kept: int) -> None:
        """How many comparisons there are to make, and how many the store holds."""
        self.total = to_measure
        self._bar.update(self._task, total=to_measure)
        kept_text = f", {kept} already in results/ (--fresh measures them again)" if kept else ""
        self.console.print(f"{self.op}: {to_measure} comparisons to measure{kept_text}", highlight=False)

    def hello(self, environment: EnvironmentRecord) -> None:
        """See `Progress.hello`."""
        self._bar.update(self._task, step=f"on {environment.device.name}")

    def step(self, task: str, arm: str, phase: str) -> None:
        """See `Progress.step`; off a terminal, one line as each comparison starts, so that a log shows life."""
        if task and not self.console.is_terminal and task != self._current:
            self.console.print(f"  {escape(task)} ...", highlight=False)
        self._current = task
        self._bar.update(self._task, step=escape(" · ".join(part for part in (task, arm, phase) if part)[:70]))

    def blocks(self, done: int, most: int) -> None:
        """See `Progress.blocks`."""
        self._bar.update(self._task, step=f"timing, block {done} of at most {most}")

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        self.console.print(f"[yellow]note[/] {escape(text)}", highlight=False)

    def measured(self, measurement: Measurement) -> None:
        """One comparison is stored."""
        self.done += 1
        self._bar.update(self._task, completed=self.done)
        self.console.print(f"  [{self.done}/{self.total}] {line_of(measurement)}", highlight=False)


def line_of(measurement: Measurement) -> str:
    """One line for a finished comparison: how many arms were timed, and what went wrong."""
    name = measurement.case.id + (f" [{measurement.context}]" if measurement.context else "")
    name = escape(name)
    if measurement.status is not RunStatus.MEASURED:
        return f"{name}: [red]{measurement.status}[/] {escape(measurement.reason)}"
    seconds = sum(measurement.phases_s.values())
    candidates = [arm for arm in measurement.arms if arm.role is Role.CANDIDATE and arm.kind is not Kind.NATIVE]
    timed = sum(arm.status is ArmStatus.OK for arm in candidates)
    counts: dict[ArmStatus, int] = {}
    for arm in candidates:
        if arm.status is not ArmStatus.OK:
            counts[arm.status] = counts.get(arm.status, 0) + 1
    others = "".join(f", {count} {status}" for status, count in sorted(counts.items()))
    return f"{name}: {timed} candidates timed{others} ({seconds:.0f} s)"
