"""Guards on an AdaLayerNorm case's own parameters."""

from harness.op import Device, Guard
from harness.schema.case import Case


def formulas(*allowed: str, why: str = "") -> Guard:
    """One of these formulas; `why` explains the others' exclusion."""

    def guard(case: Case, device: Device) -> str | None:
        formula = case.params["formula"]
        if formula in allowed:
            return None
        return f"computes the formula of {' or '.join(allowed)}, the case is {formula}{why and f': {why}'}"

    return guard


def modulations(*allowed: str) -> Guard:
    """One of these granularities of scale and shift."""

    def guard(case: Case, device: Device) -> str | None:
        modulation = case.params["modulation"]
        if modulation in allowed:
            return None
        return f"takes modulation {', '.join(allowed)}, the case has {modulation}"

    return guard


def widths_of(multiple: int, most: int) -> Guard:
    """D a multiple of this, up to that."""

    def guard(case: Case, device: Device) -> str | None:
        width = case.dims["D"]
        fits = width % multiple == 0 and width <= most
        return None if fits else f"D={width}: takes multiples of {multiple} up to {most}"

    return guard
