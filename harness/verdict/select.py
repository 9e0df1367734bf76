"""Which measurement counts, and what has changed since it was made.

For each case (alone or in a context) on each card exactly one measurement counts. In this order: made at the present
case's sizes; fresh rather than stale; valid rather than invalid; more candidates tried (so that re-measuring one
candidate does not hide the others); newest. Nothing is pooled, neither across cards nor across runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.provision.packages import PACKAGES
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, Role
from harness.sources import normal_name, op_sha256, pins
from harness.store import Stored, case_content
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
    pins: Mapping[str, str]
    """Package to the version that GPU evidence is made with."""


@dataclass(frozen=True)
class Chosen:
    """The measurement that counts for one case on one card."""

    stored: Stored
    staleness: Staleness
    passed_over: int


def present(root: Path, manifests: Mapping[str, Manifest]) -> Present:
    """Read the sources and pins below the project's root."""
    return Present(
        op_sha256={
            op: op_sha256(root, op, manifest.tolerance.model_dump(mode="json")) for op, manifest in manifests.items()
        },
        pins=pins(root / PINS_FILE) | {package.name: package.version for package in PACKAGES},
    )


def wanted(of: Measurement, manifest: Manifest) -> bool:
    """Whether the manifest still asks for what was measured."""
    return any(case.id == of.case.id and (of.context is None or of.context in case.contexts) for case in manifest.cases)


def choose(stored: Iterable[Stored], manifest: Manifest, now: Present) -> dict[CardKey, dict[Slot, Chosen]]:
    """By card and case, the measurement of this op that counts; in the manifest's order of cases and contexts."""
    found: dict[CardKey, dict[Slot, list[Stored]]] = {}
    for one in stored:
        device = one.measurement.environment.device
        slots = found.setdefault((device.key, device.uuid), {})
        slots.setdefault((one.measurement.case.id, one.measurement.context), []).append(one)
    return {
        card: {slot: _best(slots[slot], manifest, now) for slot in _slots(manifest) if slot in slots}
        for card, slots in sorted(found.items())
    }


def _slots(manifest: Manifest) -> Iterator[Slot]:
    for case in manifest.cases:
        yield case.id, None
        yield from ((case.id, context) for context in case.contexts)


def _best(stored: list[Stored], manifest: Manifest, now: Present) -> Chosen:
    judged = [(staleness(one.measurement, manifest, now), one) for one in stored]

    def rank(item: tuple[Staleness, Stored]) -> tuple[bool, bool, bool, int, str, int]:
        stale, one = item
        of = one.measurement
        tried = sum(arm.role is Role.CANDIDATE and arm.status is not ArmStatus.NOT_INSTALLED for arm in of.arms)
        return not stale.case_changed, not stale.reasons, not why_invalid(of), tried, of.started_at, one.line

    stale, best = max(judged, key=rank)
    return Chosen(best, stale, len(stored) - 1)


def staleness(of: Measurement, manifest: Manifest, now: Present) -> Staleness:
    """What has changed since the measurement was made."""
    asked = next(case for case in manifest.cases if case.id == of.case.id)
    gpu = of.environment.device.type == "cuda"
    reasons = []
    if of.environment.op_sha256 != now.op_sha256[of.op]:
        reasons.append("the op's sources have changed since")
    if gpu:
        reasons += _package_reasons(of, now.pins)
    expected = asked if gpu else asked.rehearsed()
    return Staleness(tuple(reasons), case_changed=case_content(of.case) != case_content(expected))


def _package_reasons(of: Measurement, pinned: Mapping[str, str]) -> Iterator[str]:
    """Versions that differ from the pins; a provider's id is the first word of its package's name."""
    versions = {normal_name(name): version for name, version in of.environment.packages.items()}
    by_provider = {name.split("-")[0]: name for name in (package.name for package in PACKAGES)}
    for arm in of.arms:
        package = by_provider.get(arm.id.split(".")[0])
        if package is not None and arm.provider_version is not None:
            versions[package] = arm.provider_version
    for name, version in sorted(versions.items()):
        pin = pinned.get(name)
        if pin is not None and version != pin and version.split("+")[0] != pin:
            yield f"measured with {name} {version}, the pin is {pin}"
