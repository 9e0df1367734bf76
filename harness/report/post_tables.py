"""The µbench tables of a post: deciding models first, the leader of each, then all candidates and the contexts."""

from collections.abc import Callable, Sequence

from harness.report import text
from harness.report.tables import context_table
from harness.report.text import NOTHING, Links, code, plain, table
from harness.schema.verdict import ArmVerdict, CandidateVerdict, CardVerdict, Comparison, StepVerdict
from harness.schema.vocabulary import Cache, Outcome, Role
from harness.verdict.contexts import gains


def step_summary(card: CardVerdict) -> str:
    """Each step, the deciding ones first: all its calls of the op together, the leader against the baseline."""
    rows = []
    for step in sorted(card.steps, key=lambda step: not step.decides):
        leader = next((one for one in step.candidates if one.id == step.leader), None)
        cases = [one.case for one in alone(card) if one.case.id in step.case_ids]
        calls = sum(case.calls for case in cases)
        outcome = f"{step.outcome}, {step.reason}" if step.reason else str(step.outcome)
        rows.append(
            (
                plain(f"{step.model}, {step.step}"),
                plain(text.listed(dict.fromkeys(case.layout for case in cases))) or NOTHING,
                str(calls) if leader else NOTHING,
                _leader(step.leader, leader),
                _per_step(leader.baseline_step_us if leader else None),
                _per_step(leader.candidate_step_us if leader else None),
                text.ratio_span(step.leader_ratio),
                plain(outcome if step.decides else f"does not decide; {outcome}"),
            )
        )
    headers = (
        "model, step", "layout", "calls", "leading candidate", "torch.compile, ms a step", "candidate, ms a step",
        "speed-up [95 %]", "outcome",
    )  # fmt: skip
    return table(headers, rows, right=(2, 4, 5, 6))


def _leader(name: str | None, leader: CandidateVerdict | None) -> str:
    if name is None or leader is None:
        return NOTHING
    covers = leader.covered < leader.cases
    rest = f" ({leader.covered} of {leader.cases} cases; the rest counts as torch.compile)" if covers else ""
    return code(name) + rest


def _per_step(time_us: float | None) -> str:
    return NOTHING if time_us is None else text.significant(time_us / 1000)


def case_table(card: CardVerdict, links: Links, *, of_deciding: bool) -> str:
    """Each case of the deciding steps (or of the others) with its step's leader; empty where there is none."""
    by_id = {one.case.id: one for one in alone(card)}
    pairs = [
        (by_id[case_id], step)
        for step in card.steps
        for case_id in step.case_ids
        if step.decides is of_deciding and case_id in by_id and not by_id[case_id].case_changed
    ]
    leaders = dict.fromkeys(step.leader for _, step in pairs if step.leader is not None)
    rows = [_case(one, step, links, name_leader=len(leaders) > 1) for one, step in pairs]
    named = code(next(iter(leaders))) if len(leaders) == 1 else "candidate"
    headers = (
        "model", "shape", "layout", "calls", "torch.compile µs", f"{named} µs", "speed-up [95 %]", "outcome", "kernels",
        "host µs", "of copy speed", "same code again", "evidence",
    )  # fmt: skip
    return table(headers, rows, right=(3, 4, 5, 6, 9, 10, 11)) if rows else ""


def against_twin(card: CardVerdict) -> bool:
    """Whether candidates were judged against the twin on some case."""
    return any((arm := reference(one)) is not None and arm.role is Role.TWIN for one in alone(card))


def reference(one: Comparison) -> ArmVerdict | None:
    """The arm that candidates' ratios are to."""
    return next((arm for arm in one.arms if arm.id == one.reference), one.baseline)


def _case(one: Comparison, step: StepVerdict, links: Links, *, name_leader: bool) -> tuple[str, ...]:
    base = reference(one)
    arm = next((arm for arm in one.candidates if arm.id == step.leader), None)
    timed = arm if arm is not None and arm.time_us is not None else None
    name = f"{code(arm.id)} " if arm is not None and name_leader else ""
    return (
        plain(one.case.model),
        plain(_sizes(one) + (", warm L2" if one.cache is Cache.WARM else "")),
        plain(str(one.case.layout)),
        str(one.case.calls),
        _against(one, base),
        name + text.us_span(timed.time_us) if timed is not None else NOTHING,
        text.ratio_span(timed.ratio) if timed is not None else NOTHING,
        plain(_state(one, arm)),
        _to(base, timed, lambda arm: str(len(arm.kernels))),
        _to(base, timed, lambda arm: text.us(arm.host_us)),
        _to(base, timed, lambda arm: text.share(arm.copy_share)) + (" (in L2)" if one.l2_resident else ""),
        next((text.log_span(arm.effect_log_pct) for arm in one.controls if arm.role is Role.CONTROL), NOTHING),
        text.evidence_link(one.evidence, links),
    )


def _sizes(one: Comparison) -> str:
    """Sizes and dtype; the layout has a column of its own."""
    return text.short_shape(one.case).removesuffix(f" {one.case.layout}")


def _against(one: Comparison, arm: ArmVerdict | None) -> str:
    """The time that the row's ratio divides; where it is the twin's, the other compile's time behind it."""
    if arm is None:
        return NOTHING
    first = one.baseline if arm.role is Role.TWIN else None
    other = f" twin (first compile: {text.us(first.time_us.estimate)})" if first is not None and first.time_us else ""
    return text.us_span(arm.time_us) + other


def _to(base: ArmVerdict | None, arm: ArmVerdict | None, shown: Callable[[ArmVerdict], str]) -> str:
    """`4 → 1`: of the baseline and of the candidate."""
    return " → ".join(shown(one) for one in (base, arm) if one is not None)


def _state(one: Comparison, arm: ArmVerdict | None) -> str:
    if one.invalid:
        return f"INVALID: {one.invalid}"
    if arm is None:
        return "its step is not measured whole"
    said = f"{arm.outcome}: {arm.reason}" if arm.reason else str(arm.outcome)
    said = "; ".join([said, *arm.notes])
    return f"{said} (stale)" if one.stale else said


def candidate_table(card: CardVerdict) -> str:
    """Every candidate on every deciding step that was measured, weighted by calls, and why some were not timed."""
    steps = [step for step in deciding(card) if step.leader is not None]
    if not steps:
        return ""
    found: dict[str, list[CandidateVerdict | None]] = {}
    for index, step in enumerate(steps):
        for one in step.candidates:
            found.setdefault(one.id, [None] * len(steps))[index] = one
    rows, reasons = [], []
    for name, verdicts in found.items():
        kind = next(text.kind(one.kind) for one in verdicts if one is not None)
        provider = card.providers.get(name.split(".")[0], ())
        rows.append((code(name), kind, plain(text.listed(provider)) or NOTHING, *map(_weighted, verdicts)))
        said = dict.fromkeys(one.reason for one in verdicts if one is not None and one.reason)
        reasons += [f"- {code(name)}: {plain(reason)}" for reason in said]
    models = [plain(f"{step.model}, {step.step}") for step in steps]
    made = table(("candidate", "kind", "version", *models), rows, right=range(3, 3 + len(steps)))
    return "\n\n".join(filter(None, [made, "\n".join(reasons)]))


def _weighted(one: CandidateVerdict | None) -> str:
    if one is None:
        return NOTHING
    if one.ratio is None:
        return str(one.outcome)
    covered = f" ({one.covered} of {one.cases} cases)" if one.covered < one.cases else ""
    return text.ratio_span(one.ratio) + (f" {one.outcome}" if one.outcome is not Outcome.FASTER else "") + covered


def leaders_in_context(card: CardVerdict) -> str:
    """Between their neighbours in the model: the leaders, and each context's best kernel for it alone; or ""."""
    leaders = {step.leader for step in deciding(card)} | {one.candidate for one in gains(card.comparisons)}
    kept = [(one, tuple(arm for arm in one.arms if arm.id in leaders)) for one in card.comparisons]
    return context_table([one.model_copy(update={"arms": arms}) for one, arms in kept])


def quality_table(card: CardVerdict) -> str:
    """What the gate found of each leader, over all its cases alone: the worst of each figure."""
    rows = []
    for leader in dict.fromkeys(step.leader for step in deciding(card) if step.leader is not None):
        arms = [arm for one in alone(card) for arm in one.candidates if arm.id == leader and arm.gate is not None]
        gates = [arm.gate for arm in arms if arm.gate is not None]
        ratios = [g.rms_error_oracle / g.rms_error_native_oracle for g in gates if g.rms_error_native_oracle]
        rows.append(
            (
                code(leader),
                f"{sum(gate.passed for gate in gates)} of {len(gates)}",
                f"{sum(arm.gate_after_passed is True for arm in arms)} of {len(arms)}",
                str(arms[0].contract),
                "yes" if all(gate.bit_exact for gate in gates) else "no",
                f"{sum(gate.literal_failures for gate in gates)} of {sum(gate.elements for gate in gates)}",
                str(sum(gate.rule_failures for gate in gates)),
                f"{max(ratios):.3f}" if ratios else NOTHING,
                "yes" if all(gate.deterministic for gate in gates) else "no",
                plain("; ".join(dict.fromkeys(name for gate in gates for name in gate.variants))),
            )
        )
    headers = (
        "candidate", "passed before timing", "and after it", "claims", "bit-exact found", "outside allclose(1e-2)",
        "outside the rule", "RMS error / native's, at worst", "deterministic", "inputs",
    )  # fmt: skip
    return table(headers, rows, right=(5, 6, 7)) if rows else ""


def deciding(card: CardVerdict) -> list[StepVerdict]:
    """The steps that the row waits for."""
    return [step for step in card.steps if step.decides]


def alone(card: CardVerdict) -> Sequence[Comparison]:
    """The cases without neighbours."""
    return [one for one in card.comparisons if one.context is None]
