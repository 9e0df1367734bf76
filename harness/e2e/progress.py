"""What a person sees while a cell runs: the live line on a terminal, a line for each step elsewhere."""

from __future__ import annotations

from time import monotonic

from rich.console import Console

from harness.e2e.eta import Ahead
from harness.progress import LiveProgress


class CellProgress(LiveProgress):
    """Counts processes; off a terminal prints each step with the time since the cell's start, so that a log shows
    life."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name)
        self._start_s = monotonic()
        self._said = ""

    def step(self, task: str, arm: str, phase: str) -> None:
        """See `Progress.step`."""
        step = " ".join(filter(None, (f"{task}: {phase}", arm)))
        if not self.console.is_terminal and step != self._said:
            self.console.print(f"    {monotonic() - self._start_s:4.0f} s  {step}", highlight=False, markup=False)
            self._current = task  # the line above says what the base class would
        self._said = step
        super().step(task, arm, phase)

    def processes(self, done: int, ahead: Ahead) -> None:
        """So many processes are stored, so many may follow."""
        self.total = done + ahead.processes
        self._bar.update(self._task, total=self.total, completed=done)
