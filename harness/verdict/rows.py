"""From the measurements of an op to its cards, and from these to its row of the matrix."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from harness.schema.claims import Claims
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.figures import Span
from harness.schema.manifest import Manifest
from harness.schema.measurement import Setting
from harness.schema.verdict import (
    Agreement,
    ArmVerdict,
    CardVerdict,
    Comparison,
    RowVerdict,
    StepVerdict,
    by_measurement,
)
from harness.schema.vocabulary import Outcome, Tracker
from harness.stats.combine import holm
from harness.verdict.compare import compare
from harness.verdict.contexts import gains, losses
from harness.verdict.select import Chosen, Slot
from harness.verdict.steps import COMPETING, Judged, judge_steps
from harness.verdict.trackers import preference, refuse_unfounded, trackers

_MEASURED = (Outcome.FASTER, Outcome.TIE, Outcome.SLOWER, Outcome.INCONCLUSIVE)


def judge_card(manifest: Manifest, chosen: Mapping[Slot, Chosen]) -> CardVerdict:
    """Everything about one op on one card."""
    judged = [
        Judged(one.stored.measurement, compare(one.case, one.stored, one.staleness, one.passed_over))
        for one in chosen.values()
    ]
    alone = {slot[0]: one for slot, one in zip(chosen, judged, strict=True) if slot[1] is None}
    steps = _after_holm(judge_steps(manifest, alone))
    tracker, notes = _card_cell(steps, [one.comparison for one in judged])
    environments = [one.measurement.environment for one in judged]
    names = sorted({name for environment in environments for name in environment.packages})
    return CardVerdict(
        device=environments[-1].device,
        drivers=_distinct(environment.driver for environment in environments),
        cuda=_distinct(environment.cuda for environment in environments),
        python=_distinct(environment.python for environment in environments),
        packages={name: _distinct(e.packages[name] for e in environments if name in e.packages) for name in names},
        providers=_providers(judged),
        harness_sha256=_distinct(environment.harness_sha256 for environment in environments),
        git_shas=_distinct(environment.git_sha or "none" for environment in environments),
        settings=_settings(judged),
        comparisons=tuple(one.comparison for one in judged),
        profiler_agreement=_agreement(judged, lambda arm: arm.profiler_us, lambda arm: arm.clocks_agree),
        do_bench_agreement=_agreement(judged, lambda arm: arm.do_bench_us),
        steps=steps,
        tracker=tracker,
        extent=_extent(steps),
        notes=notes,
    )


def judge_row(
    manifest: Manifest,
    claims: Claims,
    cards: Sequence[CardVerdict],
    rehearsals: Sequence[CardVerdict],
    cells: Sequence[CellVerdict],
    gpus: Iterable[str],
) -> RowVerdict:
    """The row, and what it would be on each kind of GPU (device keys) alone.

    Raises UserError for a claim that says `done` where the evidence does not.
    """
    ordered = sorted(cards, key=preference)
    found = trackers(manifest, claims, ordered, cells)
    refuse_unfounded(manifest.op, claims, found)
    return RowVerdict(
        op=manifest.op,
        title=manifest.row.title,
        type=manifest.row.type,
        triton_ref=manifest.row.triton_ref,
        cuda_ref=manifest.row.cuda_ref,
        microbench=found.microbench,
        e2e=found.e2e,
        pr=found.pr,
        cards=tuple(ordered),
        rehearsals=tuple(rehearsals),
        cells=tuple(cells),
        deciding_models=manifest.deciding_models,
        by_device={
            key: trackers(
                manifest,
                claims,
                [card for card in ordered if card.device.key == key],
                [one for one in cells if one.device.key == key],
            )
            for key in gpus
        },
    )


def said(ratio: Span) -> str:
    """A ratio with its interval, as notes print it."""
    return f"{ratio.estimate:.3f}× [{ratio.lower:.3f}, {ratio.upper:.3f}]"


def _after_holm(steps: Sequence[StepVerdict]) -> tuple[StepVerdict, ...]:
    """A deciding step stays FASTER only if it is so after Holm's correction over all deciding steps."""
    deciding = [step for step in steps if step.decides and step.p_faster is not None]
    holds = dict(zip((id(step) for step in deciding), holm([step.p_faster or 0.0 for step in deciding]), strict=True))
    return tuple(
        step.model_copy(
            update={
                "outcome": Outcome.INCONCLUSIVE,
                "settled": False,
                "reason": f"faster taken alone, not after Holm's correction over {len(deciding)} steps",
            }
        )
        if step.outcome is Outcome.FASTER and not holds.get(id(step), True)
        else step
        for step in steps
    )


def _card_cell(steps: Sequence[StepVerdict], comparisons: Sequence[Comparison]) -> tuple[Tracker, tuple[str, ...]]:
    """What one card says, and why."""
    deciding = [step for step in steps if step.decides]
    notes = (
        *map(_step_note, deciding),
        *(one.said() for one in (*losses(steps, comparisons), *gains(comparisons))),
    )
    faster = any(step.outcome is Outcome.FASTER for step in deciding)
    if faster:
        return Tracker.POSITIVE, notes
    if not all(step.settled for step in deciding):
        return Tracker.IN_PROGRESS, notes
    if not any(arm.kind in COMPETING for comparison in comparisons for arm in comparison.candidates):
        return Tracker.NO_CANDIDATE, ()
    return Tracker.NEGATIVE, notes


def _extent(steps: Sequence[StepVerdict]) -> str:
    """How many deciding steps the card's symbol rests on."""
    deciding = [step for step in steps if step.decides]
    faster = sum(step.outcome is Outcome.FASTER for step in deciding)
    measured = sum(step.outcome in _MEASURED for step in deciding)
    return f"faster on {faster} of {len(deciding)} deciding steps, {measured} measured"


def _step_note(step: StepVerdict) -> str:
    where = f"{step.model} ({step.step})"
    if step.leader is None or step.leader_ratio is None:
        return f"{where}: {step.outcome}, {step.reason}"
    why = f", {step.reason}" if step.reason else ""
    return f"{where}: {step.leader} {said(step.leader_ratio)} {step.outcome}{why}"


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


def _providers(judged: Sequence[Judged]) -> dict[str, tuple[str, ...]]:
    """Versions of the packages that kernels came from, by provider."""
    found: dict[str, set[str]] = {}
    for one in judged:
        for arm in one.measurement.arms:
            if arm.provider_version:
                found.setdefault(arm.id.split(".")[0], set()).add(arm.provider_version)
    return {provider: tuple(sorted(versions)) for provider, versions in sorted(found.items())}


def _agreement(
    judged: Sequence[Judged],
    other_us: Callable[[ArmVerdict], float | None],
    agree: Callable[[ArmVerdict], bool | None] | None = None,
) -> Agreement | None:
    read = [
        (arm, arm.time_us.estimate / other)
        for one, *_ in by_measurement(one.comparison for one in judged)
        for arm in one.arms
        if arm.cross_checked and arm.time_us is not None and (other := other_us(arm))
    ]
    if not read:
        return None
    ratios = [ratio for _, ratio in read]
    return Agreement(
        arms=len(ratios),
        agreeing=sum(bool(agree(arm)) for arm, _ in read) if agree else None,
        median=median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
    )


def _settings(judged: Sequence[Judged]) -> dict[str, tuple[Setting, ...]]:
    found: dict[str, list[Setting]] = {}
    for one in judged:
        for name, value in one.measurement.settings.items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: tuple(sorted(values, key=str)) for name, values in sorted(found.items())}
