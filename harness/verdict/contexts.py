"""What contexts say beside the isolated cases: where a leader's gain does not arrive, and what gains only there."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from harness.schema.verdict import Comparison, StepVerdict
from harness.schema.vocabulary import Outcome


class InContext(NamedTuple):
    """One candidate between the neighbours of one context."""

    candidate: str
    context: str
    cases: int
    """Those it loses, or gains, in."""
    timed: int
    """Those it was timed in."""
    ratio: float
    """t(torch.compile) / t(candidate) where it loses, or gains, most."""

    def said(self, named: Callable[[str], str] = str, plain: Callable[[str], str] = str) -> str:
        """As notes print it: the candidate as `named`, the context as `plain`."""
        candidate, context, loses = named(self.candidate), plain(self.context), self.ratio < 1
        does = (
            f"{candidate} loses in context {context}" if loses else f"{candidate}, for context {context}, gains there"
        )
        return f"{does} ({self.cases} of {self.timed} cases, at {'worst' if loses else 'best'} {self.ratio:.3f}×)"


def losses(steps: Sequence[StepVerdict], comparisons: Sequence[Comparison]) -> Iterator[InContext]:
    """Where a deciding step's leader is SLOWER: what it gains alone may not arrive in the model."""
    leaders = {step.leader for step in steps if step.decides}
    for (candidate, context), arms in _by_context(comparisons).items():
        slower = [ratio for outcome, ratio in arms if outcome is Outcome.SLOWER]
        if candidate in leaders and slower:
            yield InContext(candidate, context, len(slower), len(arms), min(slower))


def gains(comparisons: Sequence[Comparison]) -> Iterator[InContext]:
    """Of each context, the candidate for it alone that is FASTER most often, then by most.

    Such a candidate does the neighbours' work too and is no arm of the isolated case, so no step's outcome knows it.
    """
    alone = {one.case.id: {arm.id for arm in one.candidates} for one in comparisons if one.context is None}
    known = [one for one in comparisons if one.case.id in alone]
    everywhere = set[str]().union(*alone.values())
    best: dict[str, InContext] = {}
    for (candidate, context), arms in _by_context(known).items():
        faster = [ratio for outcome, ratio in arms if outcome is Outcome.FASTER]
        if candidate in everywhere or not faster:
            continue
        found = InContext(candidate, context, len(faster), len(arms), max(faster))
        if context not in best or (found.cases, found.ratio) > (best[context].cases, best[context].ratio):
            best[context] = found
    yield from best.values()


def _by_context(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], list[tuple[Outcome, float]]]:
    """Outcome and ratio of every timed candidate, by candidate and context."""
    found: dict[tuple[str, str], list[tuple[Outcome, float]]] = {}
    for one in comparisons:
        if one.context is None:
            continue
        for arm in one.candidates:
            if arm.ratio is not None:
                found.setdefault((arm.id, one.context), []).append((arm.outcome, arm.ratio.estimate))
    return found
