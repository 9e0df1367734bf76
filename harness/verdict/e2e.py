"""Processes in, end-to-end verdicts out: pure, from the store's records.

A candidate wins a component only if the rule says WIN against both baselines, static and dynamic: each test holds its
level, so the intersection does too. It has not won as soon as the rule says NO_WIN against one of them. The verdict of
a model is on a composition, with the rule run again on the composed log-ratios of the same processes:
d_k = 100 ln((F + n t_base,k) / (F + n t_cand,k)), F the fixed time of the other parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.schema.e2e_verdict import CellVerdict, CompositionVerdict, Figures, ModelArmVerdict, Tier, Verdict
from harness.schema.figures import Evidence, Span
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Contract, Decision, RunStatus
from harness.schema.workload import Composition, Workload
from harness.stats.aa import session_gate
from harness.stats.estimators import hl_interval
from harness.stats.rule import DEFAULT_TAU0_LOG_PCT, P_CAP, RuleSettings, Ruling, decide
from harness.stats.units import FloatArray, improvement_percent, log_ratios
from harness.store import StoredProcess
from harness.verdict.select import Present

EXTRA_HIGH_RATIO = 1.1
_SHARES_PCT = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_AA_SE_LIMIT_LOG_PCT = 0.30
"""Noise of an A/A process above which a bias would not show, on cells of few pairs."""
_SETTINGS = RuleSettings()
_COMPARED = (ModelRole.CANDIDATE, ModelRole.POSITIVE)
Key = tuple[str, str, str, str, str, str]
"""Op, workload, component, device key and UUID, and the context of the wiring or ""."""


def judge_cells(
    stored: Iterable[StoredProcess], workloads: Mapping[str, Workload], now: Present
) -> tuple[CellVerdict, ...]:
    """One verdict for each cell there is evidence for; of several sequences the newest that can carry a verdict."""
    sequences: dict[Key, dict[str, list[StoredProcess]]] = {}
    for one in stored:
        of = one.record
        if of.workload in workloads:
            device = of.environment.device
            key = (of.op, of.workload, of.component.id, device.key, device.uuid, of.context or "")
            sequences.setdefault(key, {}).setdefault(of.sequence, []).append(one)
    chosen = {key: max(by_id.values(), key=_rank) for key, by_id in sorted(sequences.items())}
    times = {
        (f"{key[1]}/{key[2]}", key[3]): _baseline_ms(_measured(processes))
        for key, processes in chosen.items()
        if _measured(processes)
    }
    return tuple(
        _judge(key, processes, workloads[key[1]], times, _stale(processes, now)) for key, processes in chosen.items()
    )


def settled(processes: Sequence[ProcessRecord], p_max: int) -> bool:
    """Whether the rule has said WIN or NO_WIN of every candidate that is timed, so that no more processes are needed.

    Two processes at least, or the A/A twin would rest on one.
    """
    cell = _Cell(list(processes), p_max)
    static, dynamic = cell.first(ModelRole.BASELINE), cell.first(ModelRole.BASELINE_DYNAMIC)
    timed = [arm.id for arm in processes[-1].arms if arm.role in _COMPARED and arm.times_ms]
    if len(processes) < _SETTINGS.p_loss:
        return False
    for arm_id in timed:
        both = [cell.figures(base, arm_id) for base in (static, dynamic) if base is not None]
        verdict, _ = _verdict([figures for figures in both if figures is not None])
        if verdict not in (Verdict.WIN, Verdict.NO_WIN):
            return False
    return True


def _stale(processes: Sequence[StoredProcess], now: Present) -> tuple[str, ...]:
    last = max((one.record for one in processes), key=lambda record: record.started_at)
    changed = last.environment.op_sha256 != now.op_sha256.get(last.op)
    return ("the op's sources have changed since",) if changed else ()


def _rank(processes: list[StoredProcess]) -> tuple[int, str]:
    measured = _measured(processes)
    return min(len(measured), 2), max(one.record.started_at for one in processes)


def _measured(processes: Sequence[StoredProcess]) -> list[ProcessRecord]:
    """Records of the processes that count, in the order they ran; a process run again counts once, the last."""
    latest = {one.record.process: one.record for one in processes if one.record.status is RunStatus.MEASURED}
    return [latest[index] for index in sorted(latest)]


def pair_log_ratios(base: ModelArmRecord, arm: ModelArmRecord, fixed_ms: float = 0.0, times: int = 1) -> FloatArray:
    """K log-ratios of base over arm of one process, in log-percent, two per block; composed with a fixed part."""
    base_ms = fixed_ms + times * np.ravel(np.asarray(base.times_ms))
    arm_ms = fixed_ms + times * np.ravel(np.asarray(arm.times_ms))
    return np.asarray(log_ratios(base_ms, arm_ms))


@dataclass(frozen=True)
class _Cell:
    processes: list[ProcessRecord]
    p_max: int

    def ratios(self, base: str, arm: str, fixed_ms: float = 0.0, times: int = 1) -> list[FloatArray]:
        """Of every process in which both arms were timed, from the first on without a gap."""
        found = []
        for process in self.processes:
            one, other = process.arm(base), process.arm(arm)
            if one is None or other is None or not one.times_ms or not other.times_ms:
                break
            found.append(pair_log_ratios(one, other, fixed_ms, times))
        return found

    def figures(self, base: str, arm: str, fixed_ms: float = 0.0, times: int = 1) -> Figures | None:
        """The rule on the arm against the base; None where the two were never timed together."""
        ratios = self.ratios(base, arm, fixed_ms, times)
        return _figures(decide(ratios[: self.p_max], self.p_max, _SETTINGS)) if ratios else None

    def first(self, role: ModelRole) -> str | None:
        """Id of the arm of that role."""
        return next((arm.id for process in self.processes for arm in process.arms if arm.role is role), None)


def _figures(ruling: Ruling) -> Figures:
    words = {Decision.WIN: Verdict.WIN, Decision.NO_WIN: Verdict.NO_WIN}
    return Figures(
        verdict=words.get(ruling.decision, Verdict.INCONCLUSIVE),
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


def _judge(
    key: Key,
    stored: Sequence[StoredProcess],
    workload: Workload,
    times: Mapping[tuple[str, str], float],
    stale: tuple[str, ...],
) -> CellVerdict:
    measured = _measured(stored)
    last = max((one.record for one in stored), key=lambda record: record.process)
    p_max = next((record.p_max for record in reversed(measured) if record.p_max is not None), None)
    cell = _Cell(measured, p_max or P_CAP)
    static, dynamic = cell.first(ModelRole.BASELINE), cell.first(ModelRole.BASELINE_DYNAMIC)
    ceiling, opaque, twin_id = map(cell.first, (ModelRole.CEILING, ModelRole.OPAQUE, ModelRole.TWIN))
    aa = _aa_problem(cell, static, twin_id)
    ceiling_pct, opaque_pct = _one_process(cell, static, ceiling), _one_process(cell, static, opaque)
    ids = dict.fromkeys(arm.id for record in measured for arm in record.arms if arm.role is ModelRole.CANDIDATE)
    roofline_pct = _roofline_pct(measured)
    candidates = tuple(_judge_arm(cell, arm_id, static, dynamic, aa, ceiling_pct, roofline_pct) for arm_id in ids)
    valid = [arm for arm in candidates if arm.verdict is not Verdict.INVALID and arm.gain_pct is not None]
    leader = max(valid, key=lambda arm: arm.gain_pct.estimate if arm.gain_pct else -math.inf, default=None)
    compositions, unmeasured = _compositions(cell, workload, key[2], leader, static, dynamic, times, key[3])
    return CellVerdict(
        op=key[0],
        context=key[5] or None,
        workload=key[1],
        title=workload.title,
        component=key[2],
        what=last.component.what,
        device=last.environment.device,
        library=last.library,
        versions={**last.environment.packages, "driver": last.environment.driver},
        checkpoint=last.checkpoint,
        attention_backend=last.attention_backend,
        sequence=last.sequence,
        evidence=tuple(Evidence(file=one.file, line=one.line, sha256=one.sha256) for one in stored),
        stale=stale,
        p_max=p_max,
        baseline_ms=_times(measured, static),
        dynamic_over_static=_dynamic_over_static(cell, static, dynamic),
        twin=_judge_arm(cell, twin_id, static, None, "", None, None) if twin_id else None,
        ceiling_pct=ceiling_pct,
        opaque_pct=opaque_pct,
        roofline_pct=roofline_pct,
        candidates=candidates,
        leader=leader.id if leader else None,
        verdict=leader.verdict if leader else Verdict.INVALID if candidates else Verdict.NOT_RUN,
        closed_by_ceiling=ceiling_pct is not None and ceiling_pct.upper < 1.0 and not aa,
        compositions=compositions,
        unmeasured_parts=unmeasured,
        share_table=_share_table(leader) if unmeasured or not workload.compositions else (),
    )


def _aa_problem(cell: _Cell, static: str | None, twin: str | None) -> str:
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


def _judge_arm(
    cell: _Cell,
    arm_id: str,
    static: str | None,
    dynamic: str | None,
    aa: str,
    ceiling: Span | None,
    roofline_pct: float | None,
) -> ModelArmVerdict:
    records = [arm for process in cell.processes if (arm := process.arm(arm_id)) is not None]
    first = records[0]
    to_static = cell.figures(static, arm_id) if static else None
    to_dynamic = cell.figures(dynamic, arm_id) if dynamic else None
    both = [figures for figures in (to_static, to_dynamic) if figures is not None]
    hardest = min(both, key=lambda figures: figures.gain_pct.estimate, default=None)
    verdict, reason = _verdict(both)
    broken = next((record for record in records if record.status is not ArmStatus.OK), None)
    if broken is not None:
        skipped = broken.status in (ArmStatus.INELIGIBLE, ArmStatus.NOT_INSTALLED)
        verdict = Verdict.NOT_RUN if skipped else Verdict.INVALID
        reason = f"{broken.status}: {broken.reason}"
    elif aa:
        verdict, reason = Verdict.INVALID, f"A/A: {aa}"
    elif hardest is not None and ceiling is not None and hardest.gain_pct.lower > ceiling.upper:
        verdict = Verdict.INVALID
        reason = (
            f"gains {hardest.gain_pct.estimate:+.2f} %, more than leaving the op out gains "
            f"({ceiling.estimate:+.2f} %, at most {ceiling.upper:+.2f} %)"
        )
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
        time_ms=_times(cell.processes, arm_id) if any(record.times_ms for record in records) else None,
    )


def _verdict(both: Sequence[Figures]) -> tuple[Verdict, str]:
    """Against both baselines: WIN needs both, NO_WIN needs one."""
    if not both:
        return Verdict.NOT_RUN, "not timed"
    if all(figures.verdict is Verdict.WIN for figures in both):
        return Verdict.WIN, ""
    if any(figures.verdict is Verdict.NO_WIN for figures in both):
        return Verdict.NO_WIN, ""
    return Verdict.INCONCLUSIVE, ""


def _tier(arm: ModelArmRecord, ratio: float, bit_exact: bool) -> Tier:
    if bit_exact and arm.contract is Contract.BIT_EXACT:
        return Tier.LOSSLESS
    return Tier.EXTRA_HIGH if ratio <= EXTRA_HIGH_RATIO else Tier.HIGH


def _one_process(cell: _Cell, static: str | None, arm: str | None) -> Span | None:
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


def _roofline_pct(measured: Sequence[ProcessRecord]) -> float | None:
    if not measured:
        return None
    first = measured[0]
    return 100 * first.op_bytes / first.copy_bytes_per_us / 1e3 / _baseline_ms([first])


def _baseline_ms(measured: Sequence[ProcessRecord]) -> float:
    """Median over processes of the static baseline's median run."""
    medians = [
        float(np.median(np.asarray(arm.times_ms)))
        for record in measured
        for arm in record.arms
        if arm.role is ModelRole.BASELINE and arm.times_ms
    ]
    return float(np.median(medians)) if medians else math.nan


def _times(measured: Sequence[ProcessRecord], arm_id: str | None) -> Span:
    """Median of the processes' medians with the lowest and highest of them."""
    medians = [
        float(np.median(np.asarray(arm.times_ms)))
        for record in measured
        if arm_id is not None and (arm := record.arm(arm_id)) is not None and arm.times_ms
    ]
    if not medians:
        return Span(estimate=0.0, lower=0.0, upper=0.0)
    return Span(estimate=float(np.median(medians)), lower=min(medians), upper=max(medians))


def _dynamic_over_static(cell: _Cell, static: str | None, dynamic: str | None) -> float | None:
    figures = cell.figures(static, dynamic) if static and dynamic else None
    return 1 - figures.gain_pct.estimate / 100 if figures is not None else None


def _compositions(
    cell: _Cell,
    workload: Workload,
    component: str,
    leader: ModelArmVerdict | None,
    static: str | None,
    dynamic: str | None,
    times: Mapping[tuple[str, str], float],
    device_key: str,
) -> tuple[tuple[CompositionVerdict, ...], tuple[str, ...]]:
    """The leader in each request that has this component, and the parts without a time on this kind of device.

    The fixed parts' times may come from another card of the same kind: an error of theirs moves only the weight of the
    gain, not the gain.
    """
    mine = f"{workload.workload}/{component}"
    found: list[CompositionVerdict] = []
    missing: dict[str, None] = {}
    for composition in workload.compositions:
        runs = sum(part.times for part in composition.parts if part.component == mine)
        others = [part for part in composition.parts if part.component != mine]
        lacking = [part.component for part in others if (part.component, device_key) not in times]
        missing.update(dict.fromkeys(lacking))
        if not runs or lacking or leader is None or static is None:
            continue
        fixed = sum(part.times * times[part.component, device_key] for part in others)
        found.append(_composed(cell, composition, leader, static, dynamic, fixed, runs))
    return tuple(found), tuple(missing)


def _composed(
    cell: _Cell,
    composition: Composition,
    leader: ModelArmVerdict,
    static: str,
    dynamic: str | None,
    fixed_ms: float,
    runs: int,
) -> CompositionVerdict:
    bases = [base for base in (static, dynamic) if base is not None]
    both = [figures for base in bases if (figures := cell.figures(base, leader.id, fixed_ms, runs)) is not None]
    hardest = min(both, key=lambda figures: figures.gain_pct.estimate)
    verdict = leader.verdict if leader.verdict is Verdict.INVALID else _verdict(both)[0]
    own = runs * _baseline_ms(cell.processes)
    return CompositionVerdict(
        id=composition.id,
        what=composition.what,
        excluded=composition.excluded,
        fixed_ms=fixed_ms,
        share=own / (own + fixed_ms),
        figures=hardest.model_copy(update={"verdict": verdict}),
    )


def _share_table(leader: ModelArmVerdict | None) -> tuple[tuple[float, float], ...]:
    """Gain of a request by the component's share of it: share x gain, exact for times that add up."""
    if leader is None or leader.gain_pct is None:
        return ()
    return tuple((share, share / 100 * leader.gain_pct.estimate) for share in _SHARES_PCT)
