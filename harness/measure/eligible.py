"""Whether a candidate can be called with what a case, or a context's neighbours, hand it: by name, before it is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping

from harness.op import Args, Candidate, Context, Impl, Op


def does_not_fit(candidate: Candidate, op: Op, context: Context | None, args: Args) -> str:
    """Why a candidate cannot take the arguments of a case, or "". Calls its `prepare`, and raises what that raises.

    A case may give an argument that native has a default for: candidates that do not know it do not fit.
    """
    if (prepare := candidate.prepare) is not None:
        return _unprepared(candidate, prepare, op, context, args)
    own = inspect.signature(op.native).parameters
    given = [name for name in args if name in own or candidate.context is not None]
    unknown = _unknown_to(candidate.run, given)
    return f"takes no {', '.join(unknown)}, which the case gives" if unknown else ""


def _unprepared(
    candidate: Candidate, prepare: Callable[[Args], Args], op: Op, context: Context | None, args: Args
) -> str:
    """Why a candidate cannot be called with what it prepares ahead, alone or between a context's neighbours, or ""."""
    if context is None or candidate.context is not None:
        prepared = prepare(dict(args))
        if not isinstance(prepared, Mapping):
            return f"its `prepare` gives a {type(prepared).__name__}, not a dict of arguments"
        unknown = _unknown_to(candidate.run, prepared)
        return f"takes no {', '.join(unknown)}, which the case gives or its `prepare` makes" if unknown else ""
    needed = inspect.signature(op.native).parameters.values()
    if absent := [one.name for one in needed if one.name not in args and one.default is one.empty]:
        return f"prepares the op's arguments ahead, and {', '.join(absent)} arises inside this context"
    taken = inspect.signature(context.compose(op.native)).parameters
    if added := [name for name in prepare(dict(args)) if name not in taken]:
        return f"prepares {', '.join(added)} ahead, which this context does not hand on"
    return ""


def _unknown_to(function: Impl, names: Iterable[str]) -> list[str]:
    """Those of the names that are no parameters of the function."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return []
    return [name for name in names if name not in parameters]
