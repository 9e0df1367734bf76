"""Whether a sequence needs another process: the rule's own stopping, which its error rates allow for."""

from __future__ import annotations

from collections.abc import Sequence

from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import Decision
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
    timed = [arm for arm in processes[-1].arms if arm.times_ms]
    bases = [arm.id for arm in timed if arm.role in _BASELINES]
    comparisons = [(bases, arm.id) for arm in timed if arm.role is ModelRole.CANDIDATE]
    # the slowed baseline is what the baseline must win against
    comparisons += [([arm.id], bases[0]) for arm in timed if arm.role is ModelRole.POSITIVE]
    return all(
        joint([_decision(processes, base, arm, p_max) for base in against]) in (Decision.WIN, Decision.NO_WIN)
        for against, arm in comparisons
    )


def _decision(processes: Sequence[ProcessRecord], base: str, arm: str, p_max: int) -> Decision:
    timed = [(_timed(process, base), _timed(process, arm)) for process in processes]
    ratios = [pair_log_ratios(one.times_ms, other.times_ms) for one, other in timed if one and other]
    return decide(ratios, p_max, _SETTINGS).decision


def _timed(process: ProcessRecord, arm_id: str) -> ModelArmRecord | None:
    arm = process.arm(arm_id)
    return arm if arm is not None and arm.times_ms else None
