"""From the cases of one step of a model to its candidates, weighted by calls, and to its leader."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.schema.case import Case, Confidence
from harness.schema.manifest import Manifest
from harness.schema.measurement import ArmRecord, Measurement
from harness.schema.verdict import ArmVerdict, CandidateVerdict, Comparison, StepVerdict
from harness.schema.vocabulary import ArmStatus, Kind, Outcome
from harness.stats.combine import CaseEffect, three_way, weighted_allowance, weighted_log_ratio
from harness.stats.distributions import t_upper
from harness.stats.estimators import Interval, hl_interval, widened
from harness.stats.units import log_percent, log_ratios
from harness.verdict.compare import (
    BAND_PCT,
    allowance_of,
    block_times_us,
    ratio_span,
    reference_arm,
    span,
    time_span,
)

COMPETING = (Kind.REWRITE, Kind.TRITON, Kind.CUDA)
"""Kinds that can lead: eager native and the baseline's own formula are yardsticks."""
AS_BASELINE = Interval(estimate=0.0, lower=0.0, upper=0.0, se=1e-9, df=1.0)
"""Effect on a case a candidate is not eligible for: the very same program runs there."""


@dataclass(frozen=True)
class Judged:
    """A measurement with its verdict."""

    measurement: Measurement
    comparison: Comparison


@dataclass(frozen=True)
class _Part:
    """One case of a candidate's weighted sum: its arm, or None where the baseline stands in."""

    calls: int
    measurement: Measurement
    arm: ArmRecord | None

    def effect(self, blocks: slice) -> CaseEffect:
        """On the blocks given."""
        reference = reference_arm(self.measurement)
        assert reference is not None, "a part without a baseline"
        base_us = block_times_us(reference)[blocks]
        effect = AS_BASELINE
        if self.arm is not None:
            effect = hl_interval(log_ratios(base_us, block_times_us(self.arm)[blocks]))
        allowance = allowance_of(self.measurement, self.arm) if self.arm is not None else 0.0
        return CaseEffect(time_span(base_us).estimate, self.calls, effect, allowance)


def _effects(parts: Sequence[_Part], blocks: slice) -> list[CaseEffect]:
    """The parts' effects; cases that share one measurement are one part, since their errors are the same."""
    merged: dict[int, _Part] = {}
    for part in parts:
        same = merged.get(id(part.measurement))
        calls = part.calls + (same.calls if same else 0)
        merged[id(part.measurement)] = _Part(calls, part.measurement, part.arm)
    return [part.effect(blocks) for part in merged.values()]


def _weighted(parts: Sequence[_Part], blocks: slice) -> tuple[Interval, float]:
    """The step's log-ratio, widened by what its cases' A/A controls leave open, and that allowance."""
    effects = _effects(parts, blocks)
    allowance = weighted_allowance(effects)
    return widened(weighted_log_ratio(effects), allowance), allowance


ALL, EVEN, ODD = slice(None), slice(0, None, 2), slice(1, None, 2)


def judge_steps(manifest: Manifest, alone: Mapping[str, Judged]) -> tuple[StepVerdict, ...]:
    """Every step of every model of the manifest on one card; `alone` holds the isolated measurements by case id."""
    return tuple(_judge_step(manifest, model, step, cases, alone) for (model, step), cases in manifest.steps().items())


def _judge_step(
    manifest: Manifest, model: str, step: str, cases: Sequence[Case], alone: Mapping[str, Judged]
) -> StepVerdict:
    known = [case for case in cases if case.confidence is not Confidence.MEMORY]
    counted = known or list(cases)
    ids = dict.fromkeys(arm.id for case in counted if case.id in alone for arm in alone[case.id].comparison.candidates)
    judged = [_judge_candidate(candidate, counted, alone) for candidate in ids]
    common = StepVerdict(
        model=model,
        step=step,
        case_ids=tuple(case.id for case in counted),
        left_out=tuple(case.id for case in cases if case not in counted),
        unmeasured=tuple(case.id for case in counted if case.id not in alone or alone[case.id].comparison.case_changed),
        decides=model in manifest.deciding_models and bool(known),
        candidates=tuple(verdict for verdict, _ in judged),
        outcome=Outcome.NOT_RUN,
        reason="",
        settled=False,
    )
    running = {verdict.id: parts for verdict, parts in judged if parts and verdict.kind in COMPETING}
    if running:
        return _with_leader(common, running)
    outcome, reason, settled = _without_leader(common, counted, alone)
    return common.model_copy(update={"outcome": outcome, "reason": reason, "settled": settled})


def _judge_candidate(
    candidate: str, cases: Sequence[Case], alone: Mapping[str, Judged]
) -> tuple[CandidateVerdict, list[_Part]]:
    """The candidate's verdict and, where all its cases are measured and valid, the parts of its weighted sum."""
    parts: list[_Part] = []
    missing: list[str] = []
    invalid: list[tuple[str, str]] = []
    waiting: list[str] = []
    arms: list[ArmVerdict] = []
    for case in cases:
        judged = alone.get(case.id)
        arm = next((a for a in judged.comparison.candidates if a.id == candidate), None) if judged else None
        if judged is None or judged.comparison.case_changed or arm is None:
            missing.append(case.id)
            continue
        arms.append(arm)
        if judged.comparison.invalid:
            invalid.append((case.id, judged.comparison.invalid))
        elif arm.outcome is Outcome.INVALID:
            invalid.append((case.id, arm.reason))
        elif arm.status in (ArmStatus.NOT_INSTALLED, ArmStatus.REHEARSED):
            waiting.append(arm.reason)
        else:
            timed = None if arm.status is ArmStatus.INELIGIBLE else judged.measurement.arm(candidate)
            parts.append(_Part(case.calls, judged.measurement, timed))
    covered = sum(part.arm is not None for part in parts)
    reason = ""
    if invalid:
        reason = _grouped(invalid, len(cases))
    elif waiting:
        reason = waiting[0]
    elif missing:
        reason = f"not measured: {', '.join(missing)}"
    elif not covered:
        reason = "not eligible for any of the cases: " + "; ".join(dict.fromkeys(arm.reason for arm in arms))
    kind = next(arm.kind for judged in alone.values() for arm in judged.comparison.candidates if arm.id == candidate)
    verdict = CandidateVerdict(
        id=candidate,
        kind=kind,
        outcome=Outcome.INVALID if invalid else Outcome.NOT_RUN,
        reason=reason,
        waiting=not invalid and bool(waiting or missing),
        covered=covered,
        cases=len(cases),
    )
    if reason:
        return verdict, []
    effects = _effects(parts, ALL)
    weighted, _ = _weighted(parts, ALL)
    alike = [part.effect(ALL).effect.estimate for part in parts]
    step_us = sum(effect.baseline_us * effect.calls for effect in effects)
    figures = {
        "outcome": three_way(weighted, BAND_PCT),
        "ratio": ratio_span(weighted),
        "effect_log_pct": span(weighted),
        "geomean_ratio": math.exp(sum(alike) / len(alike) / 100),
        "baseline_step_us": step_us,
        "candidate_step_us": step_us / math.exp(weighted.estimate / 100),
    }
    return verdict.model_copy(update=figures), parts


def _with_leader(common: StepVerdict, running: Mapping[str, Sequence[_Part]]) -> StepVerdict:
    chosen_on = {name: weighted_log_ratio(_effects(parts, EVEN)) for name, parts in running.items()}
    leader = max(chosen_on, key=lambda name: chosen_on[name].estimate)
    confirmed, allowance = _weighted(running[leader], ODD)
    beyond = confirmed.estimate - allowance - log_percent(BAND_PCT)
    outcome = three_way(confirmed, BAND_PCT)
    absent = [c for c in common.candidates if c.kind in COMPETING and c.waiting]
    waits = [f"{c.id}: {c.reason}" for c in absent if outcome is not Outcome.FASTER]
    reasons = list(waits)
    if outcome is Outcome.INCONCLUSIVE:
        # What cannot be FASTER closes a row as a TIE does, whichever of TIE and SLOWER it is.
        may_be_faster = confirmed.upper >= log_percent(BAND_PCT)
        if may_be_faster:
            waits = reasons = ["the interval reaches over ±1 %; more seconds per arm would narrow it"]
        else:
            reasons = ["TIE or SLOWER, and not FASTER", *waits]
    return common.model_copy(
        update={
            "leader": leader,
            "leader_ratio": ratio_span(confirmed),
            "p_faster": float(t_upper(beyond / confirmed.se, confirmed.df)),
            "outcome": outcome,
            "reason": "; ".join(reasons),
            "settled": not waits,
        }
    )


def _grouped(reasons: Sequence[tuple[str, str]], cases: int) -> str:
    """Each reason once, with the cases it holds for."""
    by_reason: dict[str, list[str]] = {}
    for case_id, reason in reasons:
        by_reason.setdefault(reason, []).append(case_id)
    return "; ".join(
        f"{reason} (on {'all cases' if len(ids) == cases > 1 else ', '.join(ids)})" for reason, ids in by_reason.items()
    )


def _without_leader(step: StepVerdict, cases: Sequence[Case], alone: Mapping[str, Judged]) -> tuple[Outcome, str, bool]:
    """Outcome, reason and whether it is settled, where no candidate can be weighed."""
    if step.unmeasured:
        changed = any(case_id in alone for case_id in step.unmeasured)
        what = "not measured" if not changed else "not measured at the manifest's present sizes"
        ranks = max(case.ranks for case in cases if case.id in step.unmeasured)
        needs = f"; needs {ranks} devices of one host" if ranks > 1 else ""
        return Outcome.NOT_RUN, f"{what}: {', '.join(step.unmeasured)}{needs}", False
    invalid = [(case.id, why) for case in cases if (why := alone[case.id].comparison.invalid)]
    if invalid:
        return Outcome.INVALID, _grouped(invalid, len(cases)), False
    competing = [candidate for candidate in step.candidates if candidate.kind in COMPETING]
    if not competing:
        return Outcome.NOT_RUN, "no candidate", True
    open_ones = [c for c in competing if c.outcome is Outcome.INVALID or c.waiting]
    if not open_ones:
        return Outcome.NOT_RUN, "no candidate is eligible", True
    outcome = Outcome.INVALID if any(c.outcome is Outcome.INVALID for c in open_ones) else Outcome.NOT_RUN
    return outcome, "; ".join(f"{c.id}: {c.reason}" for c in open_ones), False
