"""What deciding makes of the runs of many nights: series, and where they change. Computed, never stored by hand.

Values are log-percent, higher is faster: of a time -100 ln(t / µs), of a ratio 100 ln(t_compile / t_candidate). A shift
of +s means that the same work takes 100 (1 - exp(-s/100)) percent less time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from harness.schema.figures import Evidence, Span
from harness.schema.measurement import Record


class Metric(StrEnum):
    """What is followed over the nights."""

    TIME = "time"
    """Of native + torch.compile, per call: what a new library, driver or card does to everybody."""
    RATIO = "ratio to torch.compile"
    """Of a candidate, within one run: what is the same for both cancels."""
    GAIN = "gain end to end"
    """Of a candidate wired into a model, against the static baseline: one run is a sequence of processes."""


class Standing(StrEnum):
    """What may be said of a change point."""

    SUSPECTED = "suspected"
    """A trigger fired, and nothing more. Not a regression."""
    REGRESSION = "REGRESSION"
    """Confirmed on fresh runs of old and new by the decision rule: slower by at least 1 %."""
    IMPROVEMENT = "IMPROVEMENT"
    """Confirmed likewise: faster by at least 1 %."""
    UNDER_THE_BAR = "under the bar"
    """The rule says that, if there is a change at all, it is less than 1 %."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The rule used up its fresh runs and could not say."""


class SeriesKey(Record):
    """One thing followed on one kind of device."""

    device_key: str
    device_type: Literal["cuda", "cpu"]
    op: str
    where: str
    """Case id, or workload/component."""
    context: str | None
    mode: str
    """How it is timed: times of two methods are never one series."""
    arm: str
    metric: Metric

    @property
    def name(self) -> str:
        """For people, without the device."""
        inside = f" in {self.context}" if self.context else ""
        return f"{self.op} {self.where}{inside}: {self.metric} of {self.arm}"


class Run(Record):
    """One run of a series."""

    started_at: str
    value_log_pct: float
    se_log_pct: float
    """Within the run."""
    card: str
    """UUID."""
    git_sha: str | None
    build: dict[str, str]
    """All that was recorded of what ran, card and commit apart: sources and versions."""
    evidence: Evidence


class Series(Record):
    """The runs of one thing, oldest first."""

    key: SeriesKey
    runs: tuple[Run, ...]


class Confirmation(Record):
    """What the rule says of fresh runs of old and new, in pairs."""

    shift_pct: Span
    """Time that the new build saves, in percent of the old one's; negative when it is slower."""
    pairs: int
    """Pairs of fresh runs that were looked at."""
    p_max: int


class Change(Record):
    """Where a series changes."""

    key: SeriesKey
    before: Run
    """The last run before it."""
    after: Run
    """The first run after it."""
    runs_before: int
    """Back to the change before this one, or to the beginning."""
    runs_after: int
    """Up to the change after this one, or to the end."""
    shift_log_pct: float
    """Of the medians; higher is faster. What the trigger saw, without a level of confidence."""
    differs: tuple[str, ...]
    """What changed between the two runs, of what is recorded."""
    standing: Standing
    why: str
    """What the standing rests on, or what is missing, in one sentence."""
    confirmation: Confirmation | None = None

    @property
    def sentence(self) -> str:
        """For people: what changed, where, and how far it is believed."""
        seen = self.shift_log_pct
        return f"{self.key.name} on {self.key.device_key}: {self.standing}, {said(seen)} since {self.after.started_at}"


def said(shift_log_pct: float) -> str:
    """A shift in the words of time: `2.1 % less time`."""
    from math import expm1

    if shift_log_pct >= 0:
        return f"{-100 * expm1(-shift_log_pct / 100):.2f} % less time"
    return f"{100 * expm1(-shift_log_pct / 100):.2f} % more time"
