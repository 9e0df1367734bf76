"""The ranks of a case: processes of one host that compute it together, one device each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seat:
    """One process's place among the ranks of a case."""

    rank: int = 0
    ranks: int = 1
    group: str = ""
    """Name of the c10d process group of these ranks; "" for one rank."""


ALONE = Seat()
