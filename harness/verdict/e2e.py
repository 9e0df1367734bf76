"""Processes in, end-to-end verdicts out: pure, from the store's records.

A candidate wins a component only if the rule says WIN against both baselines, static and dynamic: each test holds its
level, so the intersection does too. It has not won as soon as the rule says NO_WIN against one of them. A dynamic
baseline that was clearly beaten has no times, and the static one alone is what must be won against. The verdict of
a model is on a composition, with the rule run again on the composed log-ratios of the same processes:
d_k = 100 ln((F + n t_base,k) / (F + n t_cand,k)), F the fixed time of the other parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.e2e.stopping import settled
from harness.schema.e2e_verdict import CellVerdict, CompositionVerdict, Figures, ModelArmVerdict, Verdict
from harness.schema.figures import Evidence
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.schema.workload import Composition, Workload
from harness.sources import normal_name
from harness.stats.rule import P_CAP
from harness.store import StoredProcess
from harness.verdict.e2e_arms import Timed, aa_problem, judge_arm, one_process, times_of, verdict_of
from harness.verdict.ranks import rank_figures
from harness.verdict.select import Present

_SHARES_PCT = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
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
    times: dict[tuple[str, str], float] = {}
    stood_for: dict[tuple[str, str], float] = {}
    for key, processes in chosen.items():
        if measured := _measured(processes):
            times[f"{key[1]}/{key[2]}", key[3]] = baseline_ms = _baseline_ms(measured)
            if (full := _full(measured[0])) is not None:
                stood_for[full, key[3]] = baseline_ms * (measured[0].component.depth_ratio or 1)
    times = stood_for | times
    return tuple(_judge(key, processes, workloads, times, _stale(processes, now)) for key, processes in chosen.items())


def _stale(processes: Sequence[StoredProcess], now: Present) -> tuple[str, ...]:
    """What has changed since the newest process: sources, wirings, or the pinned version of the model code."""
    last = max((one.record for one in processes), key=lambda record: record.started_at)
    reasons = []
    if last.environment.op_sha256 != now.op_sha256.get(last.op):
        reasons.append("the op's sources have changed since")
    if last.wiring_sha256 != now.wiring_sha256.get(last.op):
        reasons.append("the op's wirings have changed since")
    name, _, version = last.library.partition(" ")
    pin = now.pins.get(normal_name(name))
    if last.environment.device.type == "cuda" and pin is not None and pin != version:
        reasons.append(f"measured with {last.library}, the pin is {pin}")
    return tuple(reasons)


def _rank(processes: list[StoredProcess]) -> tuple[int, str]:
    measured = _measured(processes)
    return min(len(measured), 2), max(one.record.started_at for one in processes)


def _measured(processes: Sequence[StoredProcess]) -> list[ProcessRecord]:
    """Records of the processes that count, in the order they ran; a process run again counts once, the last."""
    latest = {one.record.process: one.record for one in processes if one.record.status is RunStatus.MEASURED}
    return [latest[index] for index in sorted(latest)]


def _judge(
    key: Key,
    stored: Sequence[StoredProcess],
    workloads: Mapping[str, Workload],
    times: Mapping[tuple[str, str], float],
    stale: tuple[str, ...],
) -> CellVerdict:
    measured = _measured(stored)
    last = max((one.record for one in stored), key=lambda record: (record.process, record.started_at))
    nothing = "" if measured else f"process {last.process}: {last.status}: {last.reason}"
    p_max = next((record.p_max for record in reversed(measured) if record.p_max is not None), None)
    cell = Timed(measured, p_max or P_CAP)
    static, dynamic = cell.first(ModelRole.BASELINE), cell.first(ModelRole.BASELINE_DYNAMIC)
    ceiling, opaque, twin_id = map(cell.first, (ModelRole.CEILING, ModelRole.OPAQUE, ModelRole.TWIN))
    aa = f"A/A: {problem}" if (problem := aa_problem(cell, static, twin_id)) else ""
    slowdown_pct = float(last.settings.get("slowdown_pct") or 0)
    positive = _positive(cell, static)
    if not aa and positive is not None and positive.verdict is Verdict.NO_WIN:
        aa = f"the baseline slowed by {slowdown_pct:g} % reads {positive.gain_pct.estimate:+.2f} % slower, no WIN"
    ceiling_pct, opaque_pct = one_process(cell, static, ceiling), one_process(cell, static, opaque)
    tried = measured or [last]
    ids = dict.fromkeys(arm.id for record in tried for arm in record.arms if arm.role is ModelRole.CANDIDATE)
    roofline_pct = _roofline_pct(measured)
    missing = _failed_dynamic(measured)
    candidates = tuple(
        judge_arm(cell, tried, arm_id, static, dynamic, aa, ceiling_pct, roofline_pct, missing) for arm_id in ids
    )
    # what a candidate gains beyond it says that it was none
    refuted = ceiling_pct is not None and any(
        arm.gain_pct is not None and arm.gain_pct.lower > ceiling_pct.upper for arm in candidates
    )
    valid = [arm for arm in candidates if arm.verdict is not Verdict.INVALID and arm.gain_pct is not None]
    leader = max(valid, key=lambda arm: arm.gain_pct.estimate if arm.gain_pct else -math.inf, default=None)
    requests = [one for of in workloads.values() for one in of.compositions]
    compositions, unmeasured = _compositions(cell, requests, last, leader, static, dynamic, times)
    return CellVerdict(
        op=key[0],
        context=key[5] or None,
        workload=key[1],
        title=workloads[key[1]].title,
        component=key[2],
        what=last.component.what,
        device=last.environment.device,
        library=last.library,
        versions={**last.environment.packages, "driver": last.environment.driver},
        checkpoint=last.checkpoint,
        attention_backend=last.attention_backend,
        sequence=last.sequence,
        settings=last.settings,
        git_sha=last.environment.git_sha,
        e2e_sha256=last.e2e_sha256,
        started_at=last.started_at,
        evidence=tuple(Evidence(file=one.file, line=one.line, sha256=one.sha256) for one in stored),
        stale=stale,
        p_max=p_max,
        baseline_ms=times_of(measured, static),
        dynamic_over_static=_dynamic_over_static(cell, static, dynamic),
        dynamic_left_out=_dynamic_left_out(measured),
        twin=judge_arm(cell, tried, twin_id, static, None, "", None, None) if twin_id else None,
        ceiling_pct=ceiling_pct,
        opaque_pct=opaque_pct,
        roofline_pct=roofline_pct,
        positive=positive,
        slowdown_pct=slowdown_pct,
        finished=settled(measured, cell.p_max) or (p_max is not None and len(measured) >= p_max),
        candidates=candidates,
        leader=leader.id if leader else None,
        verdict=_of_cell(leader, candidates, nothing),
        reason=nothing or (aa if leader is None else ""),
        closed_by_ceiling=ceiling_pct is not None and ceiling_pct.upper < 1.0 and not aa and not refuted,
        compositions=compositions,
        unmeasured_parts=unmeasured,
        own_parts=_own_parts(workloads[key[1]], last),
        share_table=_share_table(leader) if unmeasured or not compositions else (),
        ranks=rank_figures(*measured),
    )


def _of_cell(leader: ModelArmVerdict | None, candidates: Sequence[ModelArmVerdict], unmeasured: str) -> Verdict:
    if leader is not None and leader.verdict is not Verdict.NO_WIN:
        return leader.verdict
    if unmeasured or any(arm.verdict is Verdict.INVALID for arm in candidates):
        return Verdict.INVALID
    return Verdict.NO_WIN if leader is not None else Verdict.NOT_RUN


def _positive(cell: Timed, static: str | None) -> Figures | None:
    """The baseline against the arm that is the baseline slowed."""
    slowed = cell.first(ModelRole.POSITIVE)
    return cell.figures(slowed, static) if slowed and static else None


def _roofline_pct(measured: Sequence[ProcessRecord]) -> float | None:
    if not measured:
        return None
    first = measured[0]
    return 100 * first.op_bytes / first.copy_bytes_per_us / 1e3 / _baseline_ms([first])


def _full(record: ProcessRecord) -> str | None:
    """The component that this one stands for at fewer layers, as compositions name it."""
    component = record.component
    known = component.stands_for is not None and component.depth_ratio is not None
    return f"{record.workload}/{component.stands_for}" if known else None


def _baseline_ms(measured: Sequence[ProcessRecord]) -> float:
    """Median over processes of the static baseline's median run."""
    medians = [
        float(np.median(np.asarray(arm.times_ms)))
        for record in measured
        for arm in record.arms
        if arm.role is ModelRole.BASELINE and arm.times_ms
    ]
    return float(np.median(medians)) if medians else math.nan


def _dynamic_over_static(cell: Timed, static: str | None, dynamic: str | None) -> float | None:
    figures = cell.figures(static, dynamic) if static and dynamic else None
    return 1 - figures.gain_pct.estimate / 100 if figures is not None else None


def _dynamic_left_out(measured: Sequence[ProcessRecord]) -> str:
    beaten = (arm.reason for record in measured for arm in record.arms if arm.status is ArmStatus.BEATEN)
    return next(beaten, "")


def _failed_dynamic(measured: Sequence[ProcessRecord]) -> str:
    """Why the dynamic baseline is missing, other than that it is beaten; empty where it is not."""
    for record in measured:
        for arm in record.arms:
            if arm.role is ModelRole.BASELINE_DYNAMIC and arm.status not in (ArmStatus.OK, ArmStatus.BEATEN):
                why = f"{arm.status}: {arm.reason}"
                return f"dynamic=True, which a win must hold against, failed in process {record.process}: {why}"
    return ""


def _own_parts(workload: Workload, record: ProcessRecord) -> tuple[str, ...]:
    """As `CellVerdict.own_parts`: ids."""
    own = {record.component.id, record.component.stands_for}
    parts = [part.component.partition("/") for one in workload.compositions for part in one.parts]
    return tuple(dict.fromkeys(name for of, _, name in parts if of == workload.workload and name not in own))


def _compositions(
    cell: Timed,
    requests: Iterable[Composition],
    record: ProcessRecord,
    leader: ModelArmVerdict | None,
    static: str | None,
    dynamic: str | None,
    times: Mapping[tuple[str, str], float],
) -> tuple[tuple[CompositionVerdict, ...], tuple[str, ...]]:
    """The leader in each request of any model that has this component (or what it stands for at fewer layers), and
    the parts without a time on this kind of device.

    The fixed parts' times may come from another card of the same kind: an error of theirs moves only the weight of the
    gain, not the gain.
    """
    device_key, ratio = record.environment.device.key, record.component.depth_ratio or 1
    weights = {f"{record.workload}/{record.component.id}": 1, **({full: ratio} if (full := _full(record)) else {})}
    found: list[CompositionVerdict] = []
    missing: dict[str, None] = {}
    for composition in requests:
        runs = sum(part.times * weights.get(part.component, 0) for part in composition.parts)
        if not runs:
            continue
        others = [part for part in composition.parts if part.component not in weights]
        lacking = [part.component for part in others if (part.component, device_key) not in times]
        missing.update(dict.fromkeys(lacking))
        if lacking or leader is None or static is None:
            continue
        fixed = sum(part.times * times[part.component, device_key] for part in others)
        found.append(_composed(cell, composition, leader, static, dynamic, fixed, runs))
    return tuple(found), tuple(missing)


def _composed(
    cell: Timed,
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
    verdict = leader.verdict if leader.verdict is Verdict.INVALID else verdict_of(both)[0]
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
