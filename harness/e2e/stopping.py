"""Whether a sequence needs another process, and for which arms: the rule's own stopping, which its error rates allow
for.

They are those of the looks at one candidate. Each one's looks therefore end for themselves, whatever becomes of the
others: the rule replays them from the first on and stops at the one that decides, so that later processes would change
nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.e2e.protocol import LeftOut
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Decision
from harness.stats.rule import RuleSettings, decide
from harness.stats.sequences import joint, pair_log_ratios

_BASELINES = (ModelRole.BASELINE, ModelRole.BASELINE_DYNAMIC)
_SETTINGS = RuleSettings()


def settled(processes: Sequence[ProcessRecord], p_max: int) -> bool:
    """Whether the rule has said WIN or NO_WIN of every candidate, against both baselines, and of the known positive.

    Not before the first look that may decide: until then the A/A twin would rest on one process.
    """
    if len(processes) < _SETTINGS.p_loss:
        return False
    done, last = decided(processes, p_max), processes[-1]
    return all(
        arm.id in done
        # the slowed baseline is what the baseline must win against
        or (arm.role is ModelRole.POSITIVE and _settled(processes, [arm.id], _bases(last)[0], p_max) is not None)
        for arm in last.arms
        if arm.times_ms and arm.role in (ModelRole.CANDIDATE, ModelRole.POSITIVE)
    )


def left_out(processes: Sequence[ProcessRecord], p_max: int) -> LeftOut:
    """Arms that the next process does not build: what the first one found, and candidates that are decided."""
    return refused(processes[0]) | decided(processes, p_max)


def refused(first: ProcessRecord) -> LeftOut:
    """What process 0 found against a candidate, and that the dynamic baseline is beaten, holds for the sequence."""
    return {
        arm.id: (arm.status, arm.reason)
        for arm in first.arms
        if (arm.role is ModelRole.CANDIDATE and arm.status is not ArmStatus.OK) or arm.status is ArmStatus.BEATEN
    }


def decided(processes: Sequence[ProcessRecord], p_max: int) -> LeftOut:
    """Candidates of which the rule has said WIN or NO_WIN, against every baseline that is timed."""
    last, found = processes[-1], LeftOut()
    for arm in last.arms:
        if arm.role is not ModelRole.CANDIDATE:
            continue
        if arm.status is ArmStatus.DECIDED:
            found[arm.id] = (arm.status, arm.reason)
        elif arm.times_ms and (decision := _settled(processes, _bases(last), arm.id, p_max)) is not None:
            found[arm.id] = (ArmStatus.DECIDED, f"the rule said {decision} after process {last.process}")
    return found


def _settled(processes: Sequence[ProcessRecord], bases: Sequence[str], arm: str, p_max: int) -> Decision | None:
    """WIN or NO_WIN of the arm against the bases, None while it is open."""
    decision = joint([_decision(processes, base, arm, p_max) for base in bases])
    return decision if decision in (Decision.WIN, Decision.NO_WIN) else None


def _bases(process: ProcessRecord) -> list[str]:
    return [arm.id for arm in process.arms if arm.role in _BASELINES and arm.times_ms]


def _decision(processes: Sequence[ProcessRecord], base: str, arm: str, p_max: int) -> Decision:
    timed = [(_timed(process, base), _timed(process, arm)) for process in processes]
    ratios = [pair_log_ratios(one.times_ms, other.times_ms) for one, other in timed if one and other]
    return decide(ratios, p_max, _SETTINGS).decision


def _timed(process: ProcessRecord, arm_id: str) -> ModelArmRecord | None:
    arm = process.arm(arm_id)
    return arm if arm is not None and arm.times_ms else None
