"""Cells of the matrix that rest on what a person claims."""

from harness.schema.claims import Claim
from harness.schema.verdict import Cell
from harness.schema.vocabulary import Tracker


def claimed(claim: Claim | None) -> Cell:
    """Unclaimed, or in progress with its owner."""
    if claim is None:
        return Cell(symbol=Tracker.UNCLAIMED)
    return signed(Cell(symbol=Tracker.IN_PROGRESS), claim)


def signed(cell: Cell, claim: Claim | None) -> Cell:
    """The cell with its owner, the owner's link and what the owner says."""
    if claim is None:
        return cell
    remark = f"{claim.owner}: {claim.note}" if claim.note else ""
    return cell.model_copy(update={"owner": claim.owner, "link": claim.link, "remark": remark})
