"""When a train of launches on several ranks began and ended: from the last rank's entry to the last rank's exit.

A rank that waits for another spins inside the collective, so its own duration counts the other's lateness, and so does
the largest of all ranks' durations. Here the wait is left out: what counts begins when everybody is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.schema.measurement import RankTimes


@dataclass(frozen=True)
class Span:
    """One rank's part in a train, in ns on the host's monotonic clock."""

    entry_ns: int
    exit_ns: int
    uncertainty_ns: int = 0
    """How far off entry and exit may lie together; their distance is the device's own and exact."""

    @property
    def duration_ns(self) -> int:
        """As the rank itself sees it: lateness of others included."""
        return self.exit_ns - self.entry_ns


@dataclass(frozen=True)
class Train:
    """What all ranks make of one train."""

    ns: int
    """From the last rank's entry to the last rank's exit."""
    durations_ns: tuple[int, ...]
    """Each rank's own."""
    skew_ns: int
    """From the first rank's entry to the last's."""
    uncertainty_ns: int
    """The largest of the ranks'."""


def train_of(spans: Sequence[Span]) -> Train:
    """The time of a train from the spans of its ranks.

    It is the duration that the last rank to enter saw, and what another rank's exit lies behind its exit beyond doubt.
    Where the clocks cannot tell who was last, it is the longest of the durations in question.
    """
    latest = max(spans, key=lambda span: span.entry_ns)
    last = max(
        (span for span in spans if latest.entry_ns - span.entry_ns <= _doubt(span, latest)),
        key=lambda span: span.duration_ns,
    )
    behind = max(span.exit_ns - last.exit_ns - _doubt(span, last) for span in spans)
    return Train(
        ns=last.duration_ns + max(behind, 0),
        durations_ns=tuple(span.duration_ns for span in spans),
        skew_ns=latest.entry_ns - min(span.entry_ns for span in spans),
        uncertainty_ns=max(span.uncertainty_ns for span in spans),
    )


def _doubt(one: Span, other: Span) -> int:
    return 0 if one is other else one.uncertainty_ns + other.uncertainty_ns


def rank_times(pairs: Sequence[tuple[Train, Train]], launches: int) -> RankTimes | None:
    """What the ranks saw of an arm's samples (out and back) of so many launches, as stored; None for one rank."""
    if not pairs:
        return None
    each = 1e3 * launches
    return RankTimes(
        durations_us=tuple(
            (tuple(ns / each for ns in out.durations_ns), tuple(ns / each for ns in back.durations_ns))
            for out, back in pairs
        ),
        skews_us=tuple((out.skew_ns / 1e3, back.skew_ns / 1e3) for out, back in pairs),
        uncertainty_us=max(max(out.uncertainty_ns, back.uncertainty_ns) for out, back in pairs) / 1e3,
    )
