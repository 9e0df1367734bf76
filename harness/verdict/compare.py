"""One measurement judged: every arm against the baseline of the same measurement, from its raw samples alone."""

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from harness.schema.case import Case
from harness.schema.figures import Evidence, Span
from harness.schema.measurement import ArmRecord, Measurement
from harness.schema.verdict import ArmVerdict, Comparison
from harness.schema.vocabulary import ArmStatus, Kind, Outcome, Role, RunStatus
from harness.stats.combine import three_way
from harness.stats.estimators import Interval, hl_interval, widened
from harness.stats.units import FloatArray, log_ratios
from harness.store import Line
from harness.verdict.ranks import rank_figures

Result = TypeVar("Result")
Kept = TypeVar("Kept", Measurement, ArmRecord)

BAND_PCT = 1.0
"""TIE: the whole interval lies inside ±1 %."""
MIN_BLOCKS = 8
"""Fewer leave the leader's choice and its confirmation with under four blocks each."""
AA_LIMIT_LOG_PCT = 5.0
"""A same-code control farther from its baseline than this, by its interval, leaves nothing to compare with."""
SHORTEST_US = 1e-6
"""No call takes less; what reads so was not timed."""
MEMORY_MARGIN = 1.05
"""How far above the copy's rate an arm may seem to move its bytes before its work is disbelieved."""
OVERLAP_US, OVERLAP_SHARE = 0.3, 0.05
"""A call that takes so much longer behind another kernel than in a train of its own calls overlaps itself there."""
OVERLAP_MOST_US = 5.0
"""No more than a kernel's start and end can overlap; what is beyond, per kernel of a call, is no overlap."""
OVERLAP_ALLOWANCE_LOG_PCT = 5.0
"""The time behind another kernel is one reading, not a series: what it says is taken to be so far off."""
_PDL_KINDS = (Kind.TRITON, Kind.CUDA)
"""Kinds that can allow the next launch before they end (programmatic dependent launch); torch's kernels do not."""
NOT_RUN = (ArmStatus.INELIGIBLE, ArmStatus.NOT_INSTALLED, ArmStatus.REHEARSED)


@dataclass(frozen=True)
class Staleness:
    """What has changed since a measurement was made."""

    reasons: tuple[str, ...] = ()
    case_changed: bool = False


def _once(judge: Callable[[Kept], Result]) -> Callable[[Kept], Result]:
    """Remember what was made of a record while it lives: every case, step and arm asks again."""
    known: dict[int, tuple[weakref.ref[Kept], Result]] = {}

    @functools.wraps(judge)
    def remembered(of: Kept) -> Result:
        key = id(of)
        if key not in known:
            known[key] = (weakref.ref(of, lambda _: known.pop(key, None)), judge(of))
        return known[key][1]

    return remembered


def train_times_us(arm: ArmRecord) -> FloatArray:
    """Time per call of each block, shape (blocks,): the geometric mean of the way out and the way back."""
    samples = np.array(arm.samples_us, dtype=np.float64).reshape(-1, 2)
    return np.asarray(np.sqrt(samples[:, 0] * samples[:, 1]))


def block_times_us(arm: ArmRecord) -> FloatArray:
    """`train_times_us` as they are judged: scaled to what a call takes behind another kernel, where it hides its own.

    In a train, a candidate that allows its next launch early hides that launch's start, which in a model, behind
    another kernel, it does not.
    """
    return train_times_us(arm) * (1 + hidden_share(arm))


@_once
def hidden_share(arm: ArmRecord) -> float:
    """What a candidate's launches hide of one another in the train, over its time in it; 0 where they hide nothing."""
    if arm.fenced_us is None or arm.role is not Role.CANDIDATE or arm.kind not in _PDL_KINDS or not arm.samples_us:
        return 0.0
    train_us = time_span(train_times_us(arm)).estimate
    hidden_us = arm.fenced_us - train_us
    most_us = OVERLAP_MOST_US * max(1, len(arm.kernels))
    overlaps = max(OVERLAP_US, OVERLAP_SHARE * train_us) < hidden_us <= most_us
    return hidden_us / train_us if overlaps else 0.0


def _reading_log_pct(*arms: ArmRecord) -> float:
    """What a comparison may be off because one of the arms is judged by one reading behind another kernel."""
    return OVERLAP_ALLOWANCE_LOG_PCT if any(map(hidden_share, arms)) else 0.0


def span(interval: Interval) -> Span:
    """The interval as reports hold it."""
    return Span(estimate=interval.estimate, lower=interval.lower, upper=interval.upper)


def ratio_span(interval: Interval) -> Span:
    """Ratio of times from an interval in log-percent."""
    return Span(
        estimate=math.exp(interval.estimate / 100),
        lower=math.exp(interval.lower / 100),
        upper=math.exp(interval.upper / 100),
    )


def time_span(times_us: FloatArray) -> Span:
    """Time per call with its interval, from the logarithms of the blocks' times."""
    return ratio_span(hl_interval(100 * np.log(times_us)))


def compare(case: Case, stored: Line, staleness: Staleness, passed_over: int) -> Comparison:
    """Judge one measurement for a case; `passed_over` others of that case were set aside for it."""
    of = stored.measurement
    times = _times(of)
    invalid = _why_invalid(of, times)
    reference = reference_arm(of)
    roofline = of.roofline
    floor_us = None
    if roofline is not None and roofline.floor_bytes is not None:
        floor_us = roofline.copy_us * roofline.floor_bytes / roofline.bytes_moved
    return Comparison(
        case=of.case if staleness.case_changed else case,
        measured_as=of.case.id,
        context=of.context,
        evidence=Evidence(file=stored.file, line=stored.line, sha256=stored.sha256),
        started_at=of.started_at,
        status=of.status,
        invalid=invalid,
        reference=reference.id if reference else "",
        lottery=_lottery(of, times),
        allowance_log_pct=allowance_log_pct(of),
        stale=staleness.reasons,
        case_changed=staleness.case_changed,
        passed_over=passed_over,
        method=of.method,
        cache=of.cache,
        blocks=len(of.orders),
        rotation=of.rotation,
        rotated_bytes=of.rotated_bytes,
        compile_cache=of.compile_cache,
        bytes_moved=roofline.bytes_moved if roofline else None,
        copy_us=roofline.copy_us if roofline else None,
        floor_us=floor_us,
        l2_resident=roofline.l2_resident if roofline else False,
        noop_us=of.controls.noop_us if of.controls else None,
        settings=dict(of.settings),
        telemetry=of.telemetry,
        phases_s=dict(of.phases_s),
        arms=tuple(_judge(of, arm, times, invalid, floor_us) for arm in of.arms),
        ranks=rank_figures(of),
    )


def why_invalid(of: Measurement) -> str:
    """One sentence that says why no arm of a measurement can be judged, or the empty string."""
    return _why_invalid(of, _times(of))


def why_untrusted(of: Measurement, arm: ArmRecord) -> str:
    """Why an arm's own times do not count, or the empty string."""
    return _why_untrusted(of, arm, _times(of))


@_once
def _times(of: Measurement) -> dict[str, FloatArray]:
    return {arm.id: block_times_us(arm) for arm in of.arms if arm.id in of.timed_arms and _well_timed(of, arm)}


def _well_timed(of: Measurement, arm: ArmRecord) -> bool:
    return len(arm.samples_us) == len(of.orders) >= MIN_BLOCKS and min(map(min, arm.samples_us)) > SHORTEST_US


def _why_invalid(of: Measurement, times: dict[str, FloatArray]) -> str:
    if of.status is not RunStatus.MEASURED:
        return f"{of.status}: {of.reason}" if of.reason else str(of.status)
    by_role = {arm.role: arm for arm in of.arms}
    baseline, twin, control = (by_role.get(role) for role in (Role.BASELINE, Role.TWIN, Role.CONTROL))
    if baseline is None or twin is None:
        return "the measurement holds no baseline with its twin"
    for arm in (baseline, twin, control):
        if arm is not None and (problem := _why_untrusted(of, arm, times)):
            return f"{arm.id}: {problem}"
    # Without the same-code control the twin has to stand for it, and a twin's difference has no such bound.
    aa = _apart(times, baseline, control or twin)
    if three_way(aa, BAND_PCT) is Outcome.TIE or (control is not None and _bound(aa) <= AA_LIMIT_LOG_PCT):
        return ""
    limit = AA_LIMIT_LOG_PCT if control is not None else BAND_PCT
    return f"A/A failed: {(control or twin).role} {_said(aa)} is not inside ±{limit:g} %"


@_once
def allowance_log_pct(of: Measurement) -> float:
    """Bound on the systematic error of a measurement, log-percent: 0 where the same code tied with itself.

    Where it did not (two captures of one program differ by where their outputs lie, a few percent for kernels of a few
    µs), no difference of that size can be told from nothing: every interval is widened by the far end of the A/A's.
    """
    times = _times(of)
    by_role = {arm.role: arm for arm in of.arms if arm.id in times}
    baseline, control = by_role.get(Role.BASELINE), by_role.get(Role.CONTROL)
    if baseline is None or control is None:
        return 0.0
    aa = _apart(times, baseline, control)
    return 0.0 if three_way(aa, BAND_PCT) is Outcome.TIE else _bound(aa)


def allowance_of(of: Measurement, arm: ArmRecord) -> float:
    """`allowance_log_pct` of the measurement and, for a candidate that is judged by its time behind another kernel,
    what that reading may be off."""
    return allowance_log_pct(of) + _reading_log_pct(arm)


def _bound(aa: Interval) -> float:
    return max(abs(aa.lower), abs(aa.upper))


def _apart(times: dict[str, FloatArray], baseline: ArmRecord, other: ArmRecord) -> Interval:
    return hl_interval(log_ratios(times[baseline.id], times[other.id]))


def _said(interval: Interval) -> str:
    return f"{interval.estimate:+.2f} % [{interval.lower:+.2f}, {interval.upper:+.2f}]"


@_once
def reference_arm(of: Measurement) -> ArmRecord | None:
    """The arm that candidates are judged against; None where no baseline was timed.

    Two compiles of the baseline need not come out alike. Where the twin does not tie with the baseline, whichever of
    the two is faster is the reference: a candidate must not win by the luck of one compile.
    """
    times = _times(of)
    by_role = {arm.role: arm for arm in of.arms if arm.id in times}
    baseline, twin = by_role.get(Role.BASELINE), by_role.get(Role.TWIN)
    if baseline is None or twin is None or Role.CONTROL not in by_role:
        return baseline
    apart = _apart(times, baseline, twin)
    return twin if three_way(apart, BAND_PCT) is not Outcome.TIE and apart.estimate > 0 else baseline


def _baseline_id(of: Measurement, times: dict[str, FloatArray]) -> str | None:
    return next((arm.id for arm in of.arms if arm.role is Role.BASELINE and arm.id in times), None)


def _lottery(of: Measurement, times: dict[str, FloatArray]) -> str:
    by_role = {arm.role: arm for arm in of.arms if arm.id in times}
    baseline, twin = by_role.get(Role.BASELINE), by_role.get(Role.TWIN)
    if baseline is None or twin is None or Role.CONTROL not in by_role:
        return ""
    apart = _apart(times, baseline, twin)
    if three_way(apart, BAND_PCT) is Outcome.TIE:
        return ""
    return f"two compiles of the same formula lie {_said(apart)} apart; candidates are judged against the faster"


def _why_untrusted(of: Measurement, arm: ArmRecord, times: dict[str, FloatArray]) -> str:
    if arm.status is not ArmStatus.OK:
        return f"{arm.status}: {arm.reason}" if arm.reason else str(arm.status)
    if arm.id not in times:
        return f"fewer than {MIN_BLOCKS} blocks, or a block without its two times"
    for when, gate in (("before", arm.gate), ("after", arm.gate_after)):
        if gate is None and arm.role is Role.CANDIDATE:
            return f"no gate {when} timing"
        if gate is not None and not gate.passed:
            return f"{ArmStatus.GATE_FAILED} {when} timing: {gate.reason}"
    if of.roofline is not None and of.controls is not None and not of.roofline.l2_resident:
        rate = of.roofline.bytes_moved / time_span(train_times_us(arm)).estimate
        ceiling = max(of.controls.copy_bytes_per_us, of.roofline.bytes_moved / of.roofline.copy_us)
        if rate > MEMORY_MARGIN * ceiling:
            return f"{ArmStatus.FASTER_THAN_MEMORY}: {rate / 1e6:.3g} TB/s, this run's copy {ceiling / 1e6:.3g} TB/s"
    return ""


def _judge(
    of: Measurement, arm: ArmRecord, times: dict[str, FloatArray], invalid: str, floor_us: float | None
) -> ArmVerdict:
    said = ArmVerdict(
        id=arm.id,
        kind=arm.kind,
        role=arm.role,
        contract=arm.contract,
        provider_version=arm.provider_version,
        status=arm.status,
        outcome=Outcome.NOT_RUN if arm.status in NOT_RUN else Outcome.INVALID,
        reason=arm.reason,
        gate=arm.gate,
        gate_after_passed=arm.gate_after.passed if arm.gate_after else None,
        kernels=arm.kernels,
        graph_count=arm.graph_count,
        registration=arm.registration,
        tags=dict(arm.tags),
        build_s=arm.build_s,
        peak_bytes=arm.peak_bytes,
        host_us=arm.host_us,
        fenced_us=arm.fenced_us,
        profiler_us=arm.profiler_us,
        do_bench_us=arm.do_bench_us,
        launches=arm.launches,
    )
    if arm.status in NOT_RUN:
        return said
    reference = reference_arm(of)
    if reference is None or arm.id not in times:
        return said.model_copy(update={"reason": _why_untrusted(of, arm, times) or invalid})
    against = reference.id if arm.role is Role.CANDIDATE else _baseline_id(of, times) or reference.id
    d = log_ratios(times[against], times[arm.id])
    own = hl_interval(d)
    effect = widened(own, allowance_of(of, arm)) if arm.role is Role.CANDIDATE else own
    time_us = time_span(times[arm.id])
    rivals = [
        other
        for other in of.arms
        if other.role is Role.CANDIDATE and other.id in times and arm.role is Role.CANDIDATE and other.id != arm.id
    ]
    reason = _why_untrusted(of, arm, times) or invalid
    return said.model_copy(
        update={
            "outcome": Outcome.INVALID if reason else three_way(effect, BAND_PCT),
            "reason": reason,
            "notes": (*_notes(d, own), *_overlap(arm, reference)),
            "time_us": time_us,
            "effect_log_pct": span(effect),
            "ratio": ratio_span(effect),
            "rivals": {rival.id: _rival(arm, rival, times) for rival in rivals},
            "copy_share": of.roofline.copy_us / time_us.estimate if of.roofline else None,
            "floor_share": floor_us / time_us.estimate if floor_us else None,
        }
    )


def _rival(arm: ArmRecord, rival: ArmRecord, times: dict[str, FloatArray]) -> Span:
    """Ratio of a rival's time to the arm's."""
    return ratio_span(widened(hl_interval(log_ratios(times[rival.id], times[arm.id])), _reading_log_pct(arm, rival)))


def _notes(d: FloatArray, effect: Interval) -> tuple[str, ...]:
    mean = float(d.mean())
    if abs(mean - effect.estimate) > 2 * effect.se:
        return (f"it changes the shape of the noise: mean {mean:+.2f} %, Hodges-Lehmann {effect.estimate:+.2f} %",)
    return ()


def _overlap(arm: ArmRecord, reference: ArmRecord) -> tuple[str, ...]:
    """Said of a candidate whose launches overlap one another in the timed train, and how it is judged."""
    if arm.fenced_us is None or not hidden_share(arm):
        return ()
    beside = f", where {reference.id} takes {reference.fenced_us:.2f} µs" if reference.fenced_us is not None else ""
    train_us = time_span(train_times_us(arm)).estimate
    return (
        f"its launches overlap one another: {train_us:.2f} µs a call in a train of its own, "
        f"{arm.fenced_us:.2f} µs behind another kernel{beside}; judged by the latter, within "
        f"{OVERLAP_ALLOWANCE_LOG_PCT:g} %",
    )
