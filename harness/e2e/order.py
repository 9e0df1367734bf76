"""The order in which `harness e2e` without an op measures: `shapes/orders/evidence.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import UserError
from harness.schema.case import Identifier
from harness.schema.validation import load_model

FILE = "shapes/orders/evidence.yaml"


class Entry(BaseModel):
    """Cells of one op."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    op: Identifier
    """The op's id."""
    model: Annotated[str, Field(min_length=1)]
    """Glob on `workload` or `workload/component`."""


class Order(BaseModel):
    """Entries one after another."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cells: Annotated[tuple[Entry, ...], Field(min_length=1)]
    """What to measure, first things first."""


def load_order(root: Path) -> tuple[Entry, ...]:
    """Read the order; raises UserError for a damaged one, and for one that is not there."""
    path = root / FILE
    if not path.is_file():
        raise UserError(f"there is no {FILE}, which says what to measure first; name the ops to measure.")
    order, _ = load_model(path, Order)
    return order.cells
