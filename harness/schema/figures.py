"""Figures that verdicts of both stages are made of."""

from harness.schema.measurement import Record


class Span(Record):
    """An estimate with its two-sided 95 % interval."""

    estimate: float
    lower: float
    upper: float


class Evidence(Record):
    """One line of the store."""

    file: str
    """Below `results/`."""
    line: int
    sha256: str
    """Of the record, samples included."""


class RankFigures(Record):
    """What the ranks of one measurement, or of a cell's processes, saw; its times are from the last rank's entry to the
    last rank's exit."""

    ranks: int
    skew_us_median: float
    """From the first rank's entry into a sample to the last's."""
    skew_us_max: float
    uncertainty_us: float
    """How far off a rank's clock may have lain on the common scale, at worst."""
    seen_us: dict[str, tuple[float, ...]]
    """By arm, per rank: the median of its own durations, µs per call (end to end: per run), in which it may have waited
    for others."""
