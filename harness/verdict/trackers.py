"""The three cells of a row, each a symbol with its reasons, and the claims that they leave without ground."""

from collections.abc import Sequence

from harness.errors import UserError
from harness.schema.claims import Claims, ClaimState, TrackerName
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.manifest import Manifest
from harness.schema.verdict import CardVerdict, Cell, Trackers
from harness.schema.vocabulary import Tracker
from harness.verdict.claimed import claimed, signed
from harness.verdict.e2e_rows import e2e_cell

_DECIDED = (Tracker.POSITIVE, Tracker.NEGATIVE)
_OPEN = (Tracker.UNCLAIMED, Tracker.IN_PROGRESS)


def trackers(
    manifest: Manifest, claims: Claims, cards: Sequence[CardVerdict], cells: Sequence[CellVerdict]
) -> Trackers:
    """The cells that these cards (the one that decides first) and end-to-end cells give."""
    e2e = e2e_cell(manifest, claims, cells)
    return Trackers(
        microbench=_microbench_cell(manifest.op, claims, cards), e2e=e2e, pr=_pr_cell(manifest.op, claims, e2e.symbol)
    )


def refuse_unfounded(op: str, claims: Claims, found: Trackers) -> None:
    """Raises UserError where a claim says `done` and the evidence does not."""
    for tracker, cell, what, nothing in (
        (TrackerName.UBENCH, found.microbench, "µbench", "nothing was measured on a GPU"),
        (TrackerName.E2E, found.e2e, "E2E", "nothing was measured end to end"),
    ):
        if _done(claims, op, tracker) and cell.symbol in _OPEN:
            raise UserError(
                f"{claims.place(op, tracker)}: the {what} of {op} is claimed `done` and the evidence under results/ "
                f"leaves it open ({'; '.join(cell.notes) or nothing}); write `state: in_progress` or add the evidence."
            )
    if _done(claims, op, TrackerName.PR) and found.e2e.symbol not in _DECIDED:
        raise UserError(
            f"{claims.place(op, TrackerName.PR)}: the PR of {op} is claimed `done` and its E2E is {found.e2e.symbol}; "
            "write `state: in_progress` until there is a verdict."
        )


def _done(claims: Claims, op: str, tracker: TrackerName) -> bool:
    claim = claims.claim(op, tracker)
    return claim is not None and claim.state is ClaimState.DONE


def preference(card: CardVerdict) -> tuple[bool, int, str, str]:
    """Fresh before stale, decided before open, then by name: the first card decides the row."""
    order = [Tracker.POSITIVE, Tracker.NEGATIVE, Tracker.IN_PROGRESS, Tracker.NO_CANDIDATE]
    return is_stale(card), order.index(card.tracker), card.device.key, card.device.uuid


def is_stale(card: CardVerdict) -> bool:
    """Whether any isolated measurement of the card has been overtaken by sources or versions."""
    return any(comparison.stale for comparison in card.comparisons if comparison.context is None)


def _microbench_cell(op: str, claims: Claims, cards: Sequence[CardVerdict]) -> Cell:
    claim = claims.claim(op, TrackerName.UBENCH)
    if cards:
        first = cards[0]
        others = tuple(
            f"{card.device.name} (card {card.device.uuid}) says {card.tracker}"
            for card in cards[1:]
            if card.tracker is not first.tracker and not is_stale(card)
        )
        stale = sorted(
            {reason for comparison in first.comparisons if comparison.context is None for reason in comparison.stale}
        )
        cell = Cell(
            symbol=first.tracker,
            extent=first.extent,
            stale=bool(stale),
            notes=(*first.notes, *others, *(f"stale: {reason}" for reason in stale)),
        )
        return signed(cell, claim)
    return claimed(claim)


def _pr_cell(op: str, claims: Claims, e2e: Tracker) -> Cell:
    """What follows the end-to-end verdict: the PR of a ✅, the sub-issue of a ❌."""
    claim = claims.claim(op, TrackerName.PR)
    if claim is None or claim.state is not ClaimState.DONE or e2e not in _DECIDED:
        return claimed(claim)
    return signed(Cell(symbol=e2e), claim)
