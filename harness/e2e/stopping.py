"""Whether a sequence needs another process: the rule's own stopping, which its error rates allow for."""

from __future__ import annotations

from collections.abc import Sequence

from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import Decision
from harness.stats.rule import RuleSettings, decide
from harness.stats.sequences import joint, pair_log_ratios

_COMPARED = (ModelRole.CANDIDATE, ModelRole.POSITIVE)
_BASELINES = (ModelRole.BASELINE, ModelRole.BASELINE_DYNAMIC)
_SETTINGS = RuleSettings()


def settled(processes: Sequence[ProcessRecord], p_max: int) -> bool:
    """Whether the rule has said WIN or NO_WIN of every arm that competes, against both baselines.

    Not before the first look that may decide: until then the A/A twin would rest on one process.
    """
    if len(processes) < _SETTINGS.p_loss:
        return False
    competing = [arm.id for arm in processes[-1].arms if arm.role in _COMPARED and arm.times_ms]
    bases = [arm.id for arm in processes[-1].arms if arm.role in _BASELINES and arm.times_ms]
    return all(
        joint([_decision(processes, base, arm, p_max) for base in bases]) in (Decision.WIN, Decision.NO_WIN)
        for arm in competing
    )


def _decision(processes: Sequence[ProcessRecord], base: str, arm: str, p_max: int) -> Decision:
    timed = [(_timed(process, base), _timed(process, arm)) for process in processes]
    ratios = [pair_log_ratios(one.times_ms, other.times_ms) for one, other in timed if one and other]
    return decide(ratios, p_max, _SETTINGS).decision


def _timed(process: ProcessRecord, arm_id: str) -> ModelArmRecord | None:
    arm = process.arm(arm_id)
    return arm if arm is not None and arm.times_ms else None
