"""One arm of an end-to-end cell: the rule on its processes, against both baselines, and every reason against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.schema.e2e_verdict import Figures, ModelArmVerdict, Tier, Verdict
from harness.schema.figures import Span
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Contract, Decision
from harness.stats.aa import session_gate
from harness.stats.estimators import hl_interval
from harness.stats.rule import DEFAULT_TAU0_LOG_PCT, RuleSettings, Ruling, decide
from harness.stats.sequences import joint, pair_log_ratios
from harness.stats.units import FloatArray, improvement_percent

EXTRA_HIGH_RATIO = 1.1
_AA_SE_LIMIT_LOG_PCT = 0.30
"""Noise of an A/A process above which a bias would not show, on cells of few pairs."""
_SETTINGS = RuleSettings()
_VERDICTS = {Decision.WIN: Verdict.WIN, Decision.NO_WIN: Verdict.NO_WIN}
_DECISIONS = {verdict: decision for decision, verdict in _VERDICTS.items()}


@dataclass(frozen=True)
class Timed:
    """The processes of one sequence that count, in the order they ran, and how many were declared."""

    processes: list[ProcessRecord]
    p_max: int

    def ratios(self, base: str, arm: str, fixed_ms: float = 0.0, times: int = 1) -> list[FloatArray]:
        """Of every process in which both arms were timed, from the first on without a gap."""
        found = []
        for process in self.processes:
            one, other = process.arm(base), process.arm(arm)
            if one is None or other is None or not one.times_ms or not other.times_ms:
                break
            found.append(pair_log_ratios(one.times_ms, other.times_ms, fixed_ms, times))
        return found

    def figures(self, base: str, arm: str, fixed_ms: float = 0.0, times: int = 1) -> Figures | None:
        """The rule on the arm against the base; None where the two were never timed together."""
        ratios = self.ratios(base, arm, fixed_ms, times)
        return figures_of(decide(ratios[: self.p_max], self.p_max, _SETTINGS)) if ratios else None

    def first(self, role: ModelRole) -> str | None:
        """Id of the arm of that role."""
        return next((arm.id for process in self.processes for arm in process.arms if arm.role is role), None)


def figures_of(ruling: Ruling) -> Figures:
    """A ruling as reports hold it."""
    return Figures(
        verdict=_VERDICTS.get(ruling.decision, Verdict.INCONCLUSIVE),
        regression=ruling.regression,
        doubt=ruling.doubt,
        more_processes=ruling.more_processes,
        gain_pct=Span(estimate=ruling.gain_pct, lower=ruling.gain_lower_pct, upper=ruling.gain_upper_pct),
        processes=ruling.n,
        pairs=ruling.pairs,
        tau_hat_log_pct=ruling.tau_hat_log_pct,
        q_p_value=ruling.q_p_value,
        win_p_value=ruling.win_p_value,
        no_win_p_value=ruling.no_win_p_value,
    )


def aa_problem(cell: Timed, static: str | None, twin: str | None) -> str:
    """Why the twin does not hold, or "": each process must pass the session gate, and the rule must find nothing."""
    if static is None or twin is None:
        return "there is no A/A twin"
    ratios = cell.ratios(static, twin)
    if not ratios:
        return "the A/A twin was not timed"
    for number, process in enumerate(ratios):
        interval = hl_interval(process)
        gate = session_gate(interval.estimate, interval.se, DEFAULT_TAU0_LOG_PCT, _AA_SE_LIMIT_LOG_PCT)
        if not gate.passed:
            return f"process {number}: {gate.reason}"
    figures = cell.figures(static, twin)
    assert figures is not None
    if figures.verdict is Verdict.WIN or figures.regression:
        return f"the A/A twin reads {figures.gain_pct.estimate:+.2f} % over {figures.processes} processes"
    return ""


def judge_arm(
    cell: Timed,
    tried: Sequence[ProcessRecord],
    arm_id: str,
    static: str | None,
    dynamic: str | None,
    untrusted: str,
    ceiling: Span | None,
    roofline_pct: float | None,
    half_proven: str = "",
) -> ModelArmVerdict:
    """The arm against both baselines. `untrusted` says why no times of the cell count, `half_proven` why one baseline
    is missing that a win must hold against, `ceiling` is the most it can gain, `roofline_pct` the share of the
    component that the op's bytes cost anyway."""
    records = [arm for process in tried if (arm := process.arm(arm_id)) is not None]
    first = records[0]
    to_static = cell.figures(static, arm_id) if static else None
    to_dynamic = cell.figures(dynamic, arm_id) if dynamic else None
    both = [figures for figures in (to_static, to_dynamic) if figures is not None]
    hardest = min(both, key=lambda figures: figures.gain_pct.estimate, default=None)
    verdict, reason = verdict_of(both)
    # a decided candidate was whole in every process that it was built in; these decide it, here as there
    broken = next((one for one in records if one.status not in (ArmStatus.OK, ArmStatus.DECIDED)), None)
    if broken is not None:
        skipped = broken.status in (ArmStatus.INELIGIBLE, ArmStatus.NOT_INSTALLED, ArmStatus.REHEARSED)
        verdict = Verdict.NOT_RUN if skipped else Verdict.INVALID
        reason = f"{broken.status}: {broken.reason}"
    elif untrusted:
        verdict, reason = Verdict.INVALID, untrusted
    elif hardest is not None and ceiling is not None and hardest.gain_pct.lower > ceiling.upper:
        verdict = Verdict.INVALID
        reason = (
            f"gains {hardest.gain_pct.estimate:+.2f} %, more than leaving the op out gains "
            f"({ceiling.estimate:+.2f} %, at most {ceiling.upper:+.2f} %)"
        )
    elif verdict is Verdict.WIN and half_proven:
        verdict, reason = Verdict.INVALID, half_proven
    quality = next((record.quality for record in records if record.quality is not None), None)
    shadow = next((record.shadow for record in records if record.shadow is not None), None)
    possible = ceiling.estimate - (roofline_pct or 0.0) if ceiling is not None else None
    gain = hardest.gain_pct if hardest is not None else None
    return ModelArmVerdict(
        id=arm_id,
        role=first.role,
        kind=first.kind,
        contract=first.contract,
        provider_version=first.provider_version,
        verdict=verdict,
        reason=reason,
        to_static=to_static,
        to_dynamic=to_dynamic,
        gain_pct=gain,
        share_of_possible=gain.estimate / possible if gain is not None and possible and possible > 0 else None,
        tier=_tier(first, quality.ratio, quality.bit_exact) if quality is not None else None,
        quality=quality,
        shadow_max_ulp=shadow.max_ulp if shadow is not None else None,
        calls=next((record.calls for record in records if record.calls is not None), None),
        compile_s=tuple(record.compile_s for record in records if record.times_ms),
        peak_bytes=max(record.peak_bytes for record in records),
        graph_count=first.graph_count,
        time_ms=times_of(cell.processes, arm_id) if any(record.times_ms for record in records) else None,
    )


def verdict_of(both: Sequence[Figures]) -> tuple[Verdict, str]:
    """Against both baselines, as `harness.stats.sequences.joint` has it."""
    if not both:
        return Verdict.NOT_RUN, "not timed"
    decisions = [_DECISIONS.get(figures.verdict, Decision.INCONCLUSIVE) for figures in both]
    return _VERDICTS.get(joint(decisions), Verdict.INCONCLUSIVE), ""


def _tier(arm: ModelArmRecord, ratio: float, bit_exact: bool) -> Tier:
    if bit_exact and arm.contract is Contract.BIT_EXACT:
        return Tier.LOSSLESS
    return Tier.EXTRA_HIGH if ratio <= EXTRA_HIGH_RATIO else Tier.HIGH


def one_process(cell: Timed, static: str | None, arm: str | None) -> Span | None:
    """Gain of an arm that ran in the first process only; the interval allows for what processes differ by."""
    ratios = cell.ratios(static, arm) if static and arm else []
    if not ratios:
        return None
    interval = hl_interval(ratios[0])
    half = (interval.upper - interval.estimate) / interval.se * math.hypot(interval.se, DEFAULT_TAU0_LOG_PCT)
    return Span(
        estimate=improvement_percent(interval.estimate),
        lower=improvement_percent(interval.estimate - half),
        upper=improvement_percent(interval.estimate + half),
    )


def times_of(measured: Sequence[ProcessRecord], arm_id: str | None) -> Span:
    """Median of the processes' medians with the lowest and highest of them."""
    medians = [
        float(np.median(np.asarray(arm.times_ms)))
        for record in measured
        if arm_id is not None and (arm := record.arm(arm_id)) is not None and arm.times_ms
    ]
    if not medians:
        return Span(estimate=0.0, lower=0.0, upper=0.0)
    return Span(estimate=float(np.median(medians)), lower=min(medians), upper=max(medians))
