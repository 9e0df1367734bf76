"""Finds wirings: the `WIRINGS` of `candidates/<op>/wiring.py`."""

from __future__ import annotations

import importlib
import importlib.util

from harness.errors import UserError
from harness.wiring import Wiring


def wirings_of(op: str) -> tuple[Wiring, ...]:
    """The wirings of an op; none where its folder has no `wiring.py`. Raises UserError when that does not import."""
    name = f"candidates.{op}.wiring"
    if importlib.util.find_spec(name) is None:
        return ()
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise UserError(f"candidates/{op}/wiring.py does not import: {type(error).__name__}: {error}.") from error
    found: tuple[Wiring, ...] = getattr(module, "WIRINGS", ())
    return found


def wiring_for(op: str, family: str, context: str | None) -> Wiring:
    """The wiring of an op, alone or in a context, in a family of models; raises UserError when there is none."""
    for wiring in wirings_of(op):
        if (wiring.family, wiring.context) == (family, context):
            return wiring
    known = ", ".join(_name(wiring.family, wiring.context) for wiring in wirings_of(op)) or "none"
    raise UserError(f"candidates/{op}/wiring.py has no wiring for `{_name(family, context)}`; it has {known}.")


def _name(family: str, context: str | None) -> str:
    return family if context is None else f"{family} ({context})"
