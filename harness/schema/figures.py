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
