"""Which measurement counts, and what has changed since it was made.

For each case (alone or in a context) on each card exactly one measurement counts, of those of the same shape whatever
case they were made for. In this order: made at the present case's sizes; fresh rather than stale; valid rather than
invalid; more candidates tried (so that re-measuring one candidate does not hide the others); newest. Nothing is pooled,
neither across cards nor across runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.imported import op_sha256, wiring_sha256
from harness.provision.packages import PACKAGES
from harness.schema.case import Case
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, Role
from harness.sources import normal_name, pins
from harness.store import Stored
from harness.verdict.compare import Staleness, why_invalid

CardKey = tuple[str, str]
"""Device key and UUID."""
Slot = tuple[str, str | None]
"""Case id and context."""

PINS_FILE = "constraints-gpu.txt"


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
    stored: Stored
    staleness: Staleness
    passed_over: int


def present(root: Path, manifests: Mapping[str, Manifest]) -> Present:
    """Read the sources and pins below the project's root."""
    return Present(
        op_sha256={
            op: op_sha256(root, op, manifest.tolerance.model_dump(mode="json")) for op, manifest in manifests.items()
        },
        wiring_sha256={op: wiring_sha256(root, op) for op in manifests},
        pins=pins(root / PINS_FILE) | {package.name: package.version for package in PACKAGES},
    )


def wanted(of: Measurement, manifest: Manifest) -> bool:
    """Whether the manifest still asks for what was measured."""
    return any(_is_for(of, case, context) for case, context in _slots(manifest))


def choose(stored: Iterable[Stored], manifest: Manifest, now: Present) -> dict[CardKey, dict[Slot, Chosen]]:
    """By card and case, the measurement of this op that counts; in the manifest's order of cases and contexts."""
    by_card: dict[CardKey, list[Stored]] = {}
    for one in stored:
        device = one.measurement.environment.device
        by_card.setdefault((device.key, device.uuid), []).append(one)
    chosen: dict[CardKey, dict[Slot, Chosen]] = {}
    for card, on_card in sorted(by_card.items()):
        for case, context in _slots(manifest):
            found = [one for one in on_card if _is_for(one.measurement, case, context)]
            if found:
                chosen.setdefault(card, {})[case.id, context] = _best(found, case, now)
    return chosen


def _slots(manifest: Manifest) -> Iterator[tuple[Case, str | None]]:
    for case in manifest.cases:
        yield case, None
        yield from ((case, context) for context in case.contexts)


def _sized(case: Case, of: Measurement) -> Case:
    """The manifest's case at the sizes that the measurement's device is asked for."""
    return case if of.environment.device.type == "cuda" else case.rehearsed()


def _is_for(of: Measurement, case: Case, context: str | None) -> bool:
    """By shape, or by name where the shape has changed."""
    return of.context == context and (of.case.content == _sized(case, of).content or of.case.id == case.id)


def _best(stored: list[Stored], case: Case, now: Present) -> Chosen:
    judged = [(staleness(one.measurement, case, now), one) for one in stored]

    def rank(item: tuple[Staleness, Stored]) -> tuple[bool, bool, bool, int, str, int]:
        stale, one = item
        of = one.measurement
        tried = sum(arm.role is Role.CANDIDATE and arm.status is not ArmStatus.NOT_INSTALLED for arm in of.arms)
        return not stale.case_changed, not stale.reasons, not why_invalid(of), tried, of.started_at, one.line

    stale, best = max(judged, key=rank)
    return Chosen(_sized(case, best.measurement), best, stale, len(stored) - 1)


def staleness(of: Measurement, case: Case, now: Present) -> Staleness:
    """What has changed since the measurement was made for this case of the manifest."""
    reasons = []
    if of.environment.op_sha256 != now.op_sha256[of.op]:
        reasons.append("the op's sources have changed since")
    if of.environment.device.type == "cuda":
        reasons += _package_reasons(of, now.pins)
    return Staleness(tuple(reasons), case_changed=of.case.content != _sized(case, of).content)


def _package_reasons(of: Measurement, pinned: Mapping[str, str]) -> Iterator[str]:
    """Versions that differ from the pins; a provider's id is its package's name or the first word of it."""
    versions = {normal_name(name): version for name, version in of.environment.packages.items()}
    names = [package.name for package in PACKAGES]
    by_provider = {name.split("-")[0]: name for name in names} | {name.replace("-", "_"): name for name in names}
    for arm in of.arms:
        package = by_provider.get(arm.id.split(".")[0])
        if package is not None and arm.provider_version is not None:
            versions[package] = arm.provider_version
    for name, version in sorted(versions.items()):
        pin = pinned.get(name)
        if pin is not None and version != pin and version.split("+")[0] != pin:
            yield f"measured with {name} {version}, the pin is {pin}"
