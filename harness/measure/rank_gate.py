"""The gate across ranks: every rank judges its own outputs; here they become one judgement."""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure.gate import ArmGate
from harness.measure.ranks import Team, first_told
from harness.schema.measurement import GateRecord


def unequal_ranks(team: Team, judged: ArmGate) -> str:
    """Why the outputs judged last break the candidate's claim that all ranks have the same bits, or ""."""
    candidate = judged.arm.candidate
    if team.ranks == 1 or candidate is None or not candidate.equal_ranks:
        return ""
    digests = team.gather(judged.digests, f"outputs of {judged.arm.id}")
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    return "" if other is None else f"claims equal_ranks, but the outputs of rank {other} are not those of rank 0"


def worst_of(records: Sequence[GateRecord | None]) -> GateRecord | None:
    """One record for all ranks: sums of counts, the worst of every figure, what held on all of them."""
    first, *others = records
    if not others:
        return first
    known = [record for record in records if record is not None]
    if not known:
        return None
    return known[0].model_copy(
        update={
            "passed": all(record.passed for record in known),
            "reason": first_told([record.reason for record in known]),
            "elements": sum(record.elements for record in known),
            "literal_failures": sum(record.literal_failures for record in known),
            "rule_failures": sum(record.rule_failures for record in known),
            "max_abs_error_native": max(record.max_abs_error_native for record in known),
            "rms_error_oracle": max(record.rms_error_oracle for record in known),
            "rms_error_native_oracle": max(record.rms_error_native_oracle for record in known),
            "max_ulp": max(record.max_ulp for record in known),
            "p999_ulp": max(record.p999_ulp for record in known),
            "bit_exact": all(record.bit_exact for record in known),
            "deterministic": all(record.deterministic for record in known),
        }
    )
