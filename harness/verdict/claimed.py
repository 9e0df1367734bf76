"""Cells of the matrix that rest on what a person claims."""

from harness.schema.claims import Claim
from harness.schema.verdict import Cell
from harness.schema.vocabulary import Tracker


def claimed(claim: Claim | None) -> Cell:
    """Unclaimed, or in progress with its owner."""
    if claim is None:
        return Cell(symbol=Tracker.UNCLAIMED)
    return Cell(symbol=Tracker.IN_PROGRESS, owner=claim.owner, link=claim.link, notes=claim_note(claim))


def claim_note(claim: Claim | None) -> tuple[str, ...]:
    """What the owner says, signed."""
    return (f"{claim.owner}: {claim.note}",) if claim is not None and claim.note else ()
