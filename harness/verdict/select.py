"""Which measurement counts, and what has changed since it was made.

For each case (alone or in a context) on each card exactly one measurement counts, of those of the same shape whatever
case they were made for. In this order: made at the present case's sizes; fresh rather than stale; valid rather than
invalid; more candidates tried (so that re-measuring one candidate does not hide the others); newest. Nothing is pooled,
neither across cards nor across runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.imported import op_sha256, wiring_sha256
from harness.provision.packages import PACKAGES
from harness.schema.case import Case
from harness.schema.manifest import Manifest
from harness.sources import normal_name, pins
from harness.store import Line, MadeWith, Summary
from harness.verdict.compare import Staleness, why_invalid

CardKey = tuple[str, str]
"""Device key and UUID."""
Slot = tuple[str, str | None]
"""Case id and context."""

_Kind = tuple[str, str, str | None, MadeWith]
WhyNot = Callable[[Line], str]

PINS_FILE = "constraints-gpu.txt"


def unjudgeable(line: Line) -> str:
    """Why a line's samples cannot be judged, or the empty string."""
    return why_invalid(line.measurement)


@dataclass(frozen=True)
class Present:
    """What evidence is compared with to see whether it is stale."""

    op_sha256: Mapping[str, str]
    """By op: hash of its sources as they are now."""
    wiring_sha256: Mapping[str, str]
    """By op: hash of its wirings as they are now."""
    pins: Mapping[str, str]
    """Package to the version that GPU evidence is made with."""


@dataclass(frozen=True)
class Chosen:
    """The measurement that counts for one case on one card."""

    case: Case
    """The manifest's, whose calls and confidence count; at its twin's sizes on a CPU."""
    stored: Line
    staleness: Staleness
    passed_over: int


def present(root: Path, manifests: Mapping[str, Manifest]) -> Present:
    """Read the sources and pins below the project's root."""
    return Present(
        op_sha256={
            op: op_sha256(root, op, manifest.tolerance.model_dump(mode="json")) for op, manifest in manifests.items()
        },
        wiring_sha256={op: wiring_sha256(root, op) for op in manifests},
        pins=pinned(root),
    )


def pinned(root: Path) -> dict[str, str]:
    """Package to the version that GPU evidence is made with."""
    return pins(root / PINS_FILE) | {package.name: package.version for package in PACKAGES}


def wanted(of: Summary, manifest: Manifest) -> bool:
    """Whether the manifest still asks for what was measured."""
    return any(_is_for(of, case, context) for case, context in _slots(manifest))


def choose(
    lines: Iterable[Line], manifest: Manifest, now: Present, why_not: WhyNot = unjudgeable
) -> dict[CardKey, dict[Slot, Chosen]]:
    """By card and case, the measurement of this op that counts; in the manifest's order of cases and contexts.

    Only the samples of those that might count are read: `why_not` says why a line's cannot be judged, or nothing.
    """
    by_card: dict[CardKey, dict[_Kind, list[Line]]] = {}
    for one in lines:
        of = one.summary
        kinds = by_card.setdefault((of.device_key, of.device_uuid), {})
        kinds.setdefault((of.case_id, of.content, of.context, of.made_with), []).append(one)
    chosen: dict[CardKey, dict[Slot, Chosen]] = {}
    for card, kinds in sorted(by_card.items()):
        for case, context in _slots(manifest):
            found = [alike for alike in kinds.values() if _is_for(alike[0].summary, case, context)]
            if found:
                chosen.setdefault(card, {})[case.id, context] = _best(found, case, now, why_not)
    return chosen


def _slots(manifest: Manifest) -> Iterator[tuple[Case, str | None]]:
    for case in manifest.cases:
        yield case, None
        yield from ((case, context) for context in case.contexts)


def _sized(case: Case, of: Summary) -> Case:
    """The manifest's case at the sizes that the measurement's device is asked for."""
    return case if of.device_type == "cuda" else case.rehearsed()


def _is_for(of: Summary, case: Case, context: str | None) -> bool:
    """By shape, or by name where the shape has changed."""
    return of.context == context and (of.case_id == case.id or of.content == _sized(case, of).content)


def _best(found: Sequence[Sequence[Line]], case: Case, now: Present, why_not: WhyNot) -> Chosen:
    """`found`: the lines that are for this case, those in one list alike in all that makes a line stale."""
    ranks: dict[tuple[bool, bool], list[tuple[Line, Staleness]]] = {}
    for alike in found:
        stale = staleness(alike[0].summary, case, now)
        ranks.setdefault((not stale.case_changed, not stale.reasons), []).extend((one, stale) for one in alike)

    def place(item: tuple[Line, Staleness]) -> tuple[int, str, int]:
        one, _ = item
        return *one.summary.precedence, one.line

    first = sorted(ranks[max(ranks)], key=place, reverse=True)
    best, stale = next((item for item in first if not why_not(item[0])), first[0])
    return Chosen(_sized(case, best.summary), best, stale, sum(map(len, found)) - 1)


def staleness(of: Summary, case: Case, now: Present) -> Staleness:
    """What has changed since the measurement was made for this case of the manifest."""
    reasons = []
    if of.made_with.op_sha256 != now.op_sha256[of.op]:
        reasons.append("the op's sources have changed since")
    if of.device_type == "cuda":
        reasons += _package_reasons(of.made_with, now.pins)
    return Staleness(tuple(reasons), case_changed=of.content != _sized(case, of).content)


def _package_reasons(of: MadeWith, pinned: Mapping[str, str]) -> Iterator[str]:
    """Versions that differ from the pins; a provider's id is its package's name or the first word of it."""
    versions = {normal_name(name): version for name, version in of.packages}
    names = [package.name for package in PACKAGES]
    by_provider = {name.split("-")[0]: name for name in names} | {name.replace("-", "_"): name for name in names}
    for provider, version in of.providers:
        package = by_provider.get(provider)
        if package is not None:
            versions[package] = version
    for name, version in sorted(versions.items()):
        pin = pinned.get(name)
        if pin is not None and version != pin and version.split("+")[0] != pin:
            yield f"measured with {name} {version}, the pin is {pin}"
