"""`reports/claims.yaml`: what only people know about a row, its owner and links. Evidence is never written here."""

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from harness.schema.case import Identifier
from harness.schema.strict_yaml import Document
from harness.schema.validation import load_model, sentences


class ClaimState(StrEnum):
    """How far the owner says the work is."""

    CLAIMED = "claimed"
    """Someone has taken it; nothing to show yet."""
    IN_PROGRESS = "in_progress"
    DONE = "done"


class TrackerName(StrEnum):
    """The RFC's three independent trackers of a row."""

    UBENCH = "ubench"
    E2E = "e2e"
    PR = "pr"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Claim(_Strict):
    """One tracker of one row, as its owner states it."""

    owner: Annotated[str, Field(pattern=r"^@[A-Za-z0-9][A-Za-z0-9-]*$")]
    """Account of the person who claims it, with the @."""
    state: ClaimState
    """How far the work is."""
    link: Annotated[str, Field(pattern=r"^https://[^\s<>()|]+$")] | None = None
    """Comment, sub-issue or PR that shows it; needed unless the state is `claimed`."""
    note: Annotated[str, Field(max_length=300)] = ""
    """Anything a reader of the matrix should know, e.g. the GPU."""

    @model_validator(mode="after")
    def _shown(self) -> "Claim":
        if self.state is not ClaimState.CLAIMED and self.link is None:
            raise ValueError(f"state {self.state} needs a `link` that shows it; add it, or write `state: claimed`.")
        return self


class RowClaims(_Strict):
    """The claims on one row; a tracker that is not named is unclaimed."""

    ubench: Claim | None = None
    """Claim on the microbenchmark."""
    e2e: Claim | None = None
    """Claim on the end-to-end measurement."""
    pr: Claim | None = None
    """Claim on the PR, or on the sub-issue of a ❌."""


class Claims(_Strict):
    """All claims, by op."""

    rows: dict[Identifier, RowClaims]
    """Op id to the claims on its row."""

    _document: Document = PrivateAttr()

    def claim(self, op: str, tracker: TrackerName) -> Claim | None:
        """The claim on one cell, or None when it is unclaimed."""
        row = self.rows.get(op)
        return getattr(row, tracker) if row else None

    def place(self, op: str, tracker: TrackerName) -> str:
        """`file:line` of the claim, or of the row when the tracker is unclaimed."""
        return self._document.place(("rows", op, tracker.value))


def load_claims(path: Path) -> Claims:
    """Read the claims; raises `UserError` with one line for each error, each with file, line and fix."""
    claims, document = load_model(path, Claims)
    claims._document = document
    return claims


def check_rows(claims: Claims, ops: Collection[str]) -> list[str]:
    """Claims on rows that have no manifest, one `file:line: sentence` each."""
    return sentences(
        claims._document,
        [
            (("rows", op), f"row `{op}` has no manifest; choose from {', '.join(ops)}.")
            for op in claims.rows
            if op not in ops
        ],
    )
