"""Which comparisons and cells are due on this card, and which of them fit into what is left of a night. Pure.

Evidence is never pooled over cards, so an op is taken whole where it fits: half an op on this card and half on the next
decide nothing. What is due comes first, and of that what decides rows; what was measured before is measured again,
the oldest first, for the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.nightly.estimates import Cost, Estimates


class State(StrEnum):
    """What the evidence of this card says of a piece of work."""

    NEVER = "never measured"
    STALE = "stale"
    INVALID = "invalid"
    MEASURED = "measured before"

    @property
    def is_due(self) -> bool:
        """Whether a row waits for it."""
        return self is not State.MEASURED


_URGENCY = {
    (State.NEVER, True): 0,
    (State.STALE, True): 1,
    (State.INVALID, True): 1,
    (State.NEVER, False): 2,
    (State.STALE, False): 3,
    (State.INVALID, False): 3,
    (State.MEASURED, True): 4,
    (State.MEASURED, False): 5,
}


@dataclass(frozen=True)
class Work:
    """One case of an op with all its contexts, or one end-to-end cell."""

    op: str
    id: str
    """The case's, or `workload/component`."""
    state: State
    decides: bool
    """A deciding model's, by more than memory."""
    costs: tuple[Cost, ...] = ()
    """Of the case alone and in its contexts."""
    last: str = ""
    """When it was measured last on this card, ISO 8601; empty when never."""
    began: bool = False
    """An interrupted run of this night began it."""

    @property
    def seconds(self) -> float:
        """Measuring alone."""
        return sum(cost.measure_s for cost in self.costs)

    @property
    def urgency(self) -> tuple[bool, int, str]:
        """Lower comes first: what this night began, then what is due, then the oldest."""
        return not self.began, _URGENCY[self.state, self.decides], self.last


@dataclass(frozen=True)
class Choice:
    """What of an op is taken on now."""

    works: tuple[Work, ...]
    estimate_s: float
    reason: str = ""
    """Why some or all of it is left out; empty when nothing is."""


def in_order(works: Sequence[Work]) -> list[Work]:
    """By urgency; otherwise as they came."""
    return sorted(works, key=lambda work: work.urgency)


def ops_in_order(works: Sequence[Work]) -> list[str]:
    """Ops by their most urgent work; of equals the one whose oldest evidence is older, then the matrix's order."""
    first = {work.op: work for work in reversed(in_order(works))}
    ops = list(dict.fromkeys(work.op for work in works))
    return sorted(ops, key=lambda op: first[op].urgency)


def choose(works: Sequence[Work], estimates: Estimates, left_s: float, night_s: float) -> Choice:
    """What of one op's `works` is begun with `left_s` seconds left of a night that has `night_s` for such work.

    All of it where it fits. Else what decides the row, where that fits. Else, where no night would be long enough, as
    much as fits (the same card goes on another night); else nothing, and it comes earlier another night.
    """
    ordered = in_order(works)
    whole_s = _seconds(ordered, estimates)
    if whole_s <= left_s:
        return Choice(tuple(ordered), whole_s)
    needs = f"all of it needs about {minutes(whole_s)}, {minutes(left_s)} are left"
    deciding = [work for work in ordered if work.decides]
    deciding_s = _seconds(deciding, estimates)
    if deciding and deciding_s <= left_s:
        return Choice(tuple(deciding), deciding_s, f"deciding cases alone: {needs}")
    if all(work.state is State.MEASURED for work in ordered) or (deciding_s if deciding else whole_s) > night_s:
        fitting: list[Work] = []
        while len(fitting) < len(ordered) and _seconds(ordered[: len(fitting) + 1], estimates) <= left_s:
            fitting.append(ordered[len(fitting)])
        if fitting:
            return Choice(tuple(fitting), _seconds(fitting, estimates), f"as much as fits: {needs}")
    return Choice((), 0.0, needs)


def _seconds(works: Sequence[Work], estimates: Estimates) -> float:
    return estimates.of_run([cost for work in works for cost in work.costs])


def minutes(seconds: float) -> str:
    """As people say it."""
    return f"{max(seconds, 0.0):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
