"""The time a night has, and the alarm at its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType

RESERVE_S = {"cuda": 75.0, "cpu": 30.0}
"""For deciding, drawing and the history, after the last measurement."""


class BudgetSpent(KeyboardInterrupt):
    """The end of the budget, raised wherever Ctrl-C would be: all that measures keeps what it has stored."""


class PieceSpent(BudgetSpent):
    """The end of what one op may take; the night goes on."""


@dataclass(frozen=True)
class Budget:
    """So many seconds from now on."""

    total_s: float
    reserve_s: float
    start_s: float = field(default_factory=monotonic)

    @property
    def left_s(self) -> float:
        """What measurements may still take; below zero when it is spent."""
        return self.start_s + self.total_s - self.reserve_s - monotonic()

    @property
    def spent_s(self) -> float:
        """Since the start."""
        return monotonic() - self.start_s

    @contextmanager
    def alarm(self) -> Iterator[None]:
        """Raise BudgetSpent in the main thread once a third of the reserve is spent too.

        Estimates keep measurements within; this ends what takes far longer than it ever did.
        """

        def ring(number: int, frame: FrameType | None) -> None:
            raise BudgetSpent

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(self.left_s + self.reserve_s / 3, 0.001))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
