"""The tables of an op's page."""

from collections import Counter
from collections.abc import Sequence

from harness.report import text
from harness.report.text import NOTHING, code, kernel_name, plain, table
from harness.schema.verdict import (
    Agreement,
    ArmVerdict,
    CandidateVerdict,
    CardVerdict,
    Comparison,
    StepVerdict,
    by_measurement,
)
from harness.schema.vocabulary import Outcome, Role
from harness.verdict.steps import COMPETING


def step_table(step: StepVerdict) -> str:
    """All candidates on one step, the leader marked."""
    shared = Counter(one.reason for one in step.candidates)
    notes = [reason for reason, count in shared.items() if reason and count > 1 and reason != step.reason]
    rows = [
        (
            code(one.id) + (" ← leader" if one.id == step.leader else ""),
            text.kind(one.kind),
            text.ratio_span(one.ratio),
            _said(one, step.reason, notes),
            text.ratio(one.geomean_ratio),
            text.us(one.baseline_step_us),
            text.us(one.candidate_step_us),
            f"{one.covered}/{one.cases}",
        )
        for one in step.candidates
    ]
    headers = (
        "candidate",
        "kind",
        "weighted by calls",
        "outcome",
        "geomean (unweighted)",
        "torch.compile µs a step",
        "candidate µs a step",
        "cases covered",
    )
    if not rows:
        return "No candidate was tried."
    said = "; ".join(f"({number}) {plain(reason)}" for number, reason in enumerate(notes, start=1))
    return table(headers, rows, right=(2, 4, 5, 6, 7)) + (f"\n\n{said}." if said else "")


def _said(one: CandidateVerdict, above: str, notes: Sequence[str]) -> str:
    """An outcome with its reason, which is not repeated where the step has it too or several candidates share it."""
    if not one.reason:
        return str(one.outcome)
    if one.reason == above:
        return f"{one.outcome}, as above"
    if one.reason in notes:
        return f"{one.outcome} ({notes.index(one.reason) + 1})"
    return plain(f"{one.outcome}: {one.reason}")


def fastest(one: Comparison) -> ArmVerdict | None:
    """The candidate with the highest valid ratio, chosen and shown on the same samples."""
    valid = [arm for arm in one.candidates if arm.kind in COMPETING and arm.ratio is not None and not arm.reason]
    return max(valid, key=lambda arm: arm.ratio.estimate if arm.ratio else 0.0, default=None)


def overview_table(comparisons: Sequence[Comparison]) -> str:
    """One line for each case alone."""
    rows = []
    for one in comparisons:
        best, base = fastest(one), one.baseline
        base_us = base.time_us.estimate if base is not None and base.time_us is not None else None
        rows.append(
            (
                code(one.case.id),
                text.short_shape(one.case),
                str(one.case.calls),
                text.us(base_us),
                code(best.id) if best else NOTHING,
                text.us(best.time_us.estimate) if best and best.time_us else NOTHING,
                text.ratio_span(best.ratio) if best else NOTHING,
                plain(_state(one, best)),
                text.share(best.copy_share) if best else NOTHING,
                text.share(best.floor_share) if best else NOTHING,
            )
        )
    headers = (
        "case",
        "shape",
        "calls",
        "torch.compile µs",
        "fastest candidate",
        "its µs",
        "to torch.compile",
        "outcome",
        "of copy",
        "of floor",
    )
    return table(headers, rows, right=(2, 3, 5, 6, 8, 9))


def _state(one: Comparison, best: ArmVerdict | None) -> str:
    if one.invalid:
        return f"INVALID: {one.invalid.split(':')[0]}"
    if one.case_changed:
        return "the manifest's sizes have changed"
    state = str(best.outcome) if best else "no candidate was timed"
    return f"{state} (stale)" if one.stale else state


def case_tables(one: Comparison) -> list[str]:
    """Times, rivals, gate, cost, and what was not timed, of one comparison."""
    timed = [arm for arm in one.arms if arm.time_us is not None]
    untimed = [arm for arm in one.arms if arm.time_us is None]
    tables = []
    if timed:
        tables.append(_times(one, timed))
    rivals = [arm for arm in timed if arm.rivals]
    if len(rivals) > 1:
        tables.append(_rivals(rivals))
    gated = [arm for arm in one.arms if arm.gate is not None]
    if gated:
        tables.append(_gates(gated))
    if timed:
        tables.append(_costs(timed))
    if untimed:
        rows = [
            (code(arm.id), text.kind(arm.kind), str(arm.status), plain(arm.reason.removeprefix(f"{arm.status}: ")))
            for arm in untimed
        ]
        tables.append(table(("not timed", "kind", "status", "why"), rows))
    return tables


def _times(one: Comparison, timed: Sequence[ArmVerdict]) -> str:
    rows = [
        (
            code(arm.id),
            text.kind(arm.kind),
            text.us_span(arm.time_us),
            NOTHING if arm.role is Role.BASELINE else text.ratio_span(arm.ratio),
            _outcome(arm, one.invalid),
            text.share(arm.copy_share),
            text.share(arm.floor_share),
        )
        for arm in timed
    ]
    unit = f"µs, {one.cache}"
    return table(("arm", "kind", unit, "to torch.compile", "outcome", "of copy", "of floor"), rows, right=(2, 3, 5, 6))


def _outcome(arm: ArmVerdict, invalid: str) -> str:
    """`invalid` is why nothing in the comparison counts; its heading says it, once."""
    reason = "" if arm.reason == invalid else arm.reason
    if arm.role is Role.BASELINE:
        return plain(reason) or "baseline"
    said = f"{arm.outcome}: {reason}" if reason else str(arm.outcome)
    return plain("; ".join([said, *arm.notes]))


def _rivals(arms: Sequence[ArmVerdict]) -> str:
    """Each pair once, the faster first: the other half would be its inverse."""
    ordered = sorted(arms, key=lambda arm: arm.time_us.estimate if arm.time_us else 0.0)
    rows = [
        [
            code(arm.id),
            *(
                text.ratio_span(arm.rivals.get(other.id)) if column >= row else ""
                for column, other in enumerate(slower)
            ),
        ]
        for row, arm in enumerate(ordered[:-1])
        for slower in [ordered[1:]]
    ]
    headers = ["times as fast as", *(code(arm.id) for arm in ordered[1:])]
    return table(headers, rows, right=range(1, len(ordered)))


def _gates(arms: Sequence[ArmVerdict]) -> str:
    rows = []
    inputs = dict.fromkeys(", ".join(arm.gate.variants) for arm in arms if arm.gate)
    for arm in arms:
        gate = arm.gate
        assert gate is not None
        native = gate.rms_error_native_oracle
        after = {None: "not run", True: "passed", False: "FAILED"}[arm.gate_after_passed]
        rows.append(
            (
                code(arm.id),
                "passed" if gate.passed else plain(f"FAILED: {gate.reason}"),
                after,
                f"{gate.literal_failures}/{gate.elements}",
                str(gate.rule_failures),
                str(gate.max_ulp),
                str(gate.p999_ulp),
                f"{gate.rms_error_oracle / native:.3f}" if native else f"{gate.rms_error_oracle:.3g} (native 0)",
                "yes" if gate.bit_exact else "no",
                str(arm.contract),
                "yes" if gate.deterministic else "no",
                *([plain(", ".join(gate.variants))] if len(inputs) > 1 else []),
            )
        )
    headers = (
        "gate",
        "before timing",
        "after timing",
        "literal misses",
        "rule misses",
        "max ULP",
        "p99.9 ULP",
        "RMS / native's",
        "bit-exact found",
        "claimed",
        "deterministic",
        *(["inputs"] if len(inputs) > 1 else []),
    )
    below = f"\n\nInputs: {plain(next(iter(inputs)))}." if len(inputs) == 1 else ""
    return table(headers, rows, right=(3, 4, 5, 6, 7)) + below


def gate_notes(comparisons: Sequence[Comparison]) -> str:
    """What the gate noticed beside passing or failing, once for each arm; a list, or the empty string."""
    noticed: dict[tuple[str, str], list[str]] = {}
    for one, *_ in by_measurement(comparisons):
        for arm in one.arms:
            for note in arm.gate.notes if arm.gate else ():
                noticed.setdefault((arm.id, note), []).append(one.case.id)
    return "\n".join(
        f"- {code(arm)}: {plain(note)}"
        + (f" ({code(cases[0])})" if len(cases) == 1 else f" ({len(cases)} measurements)")
        for (arm, note), cases in noticed.items()
    )


def _costs(arms: Sequence[ArmVerdict]) -> str:
    tagged = any(arm.tags for arm in arms)
    baseline = next((arm for arm in arms if arm.role is Role.BASELINE), None)
    rows = []
    for arm in arms:
        same = baseline is not None and arm.role in (Role.CONTROL, Role.TWIN) and arm.kernels == baseline.kernels
        kernels = " ".join(code(kernel_name(kernel)) for kernel in arm.kernels)
        rows.append(
            (
                code(arm.id),
                f"{arm.build_s:.2f}",
                text.mib(arm.peak_bytes),
                text.us(arm.host_us),
                arm.registration,
                NOTHING if arm.graph_count is None else str(arm.graph_count),
                str(arm.launches),
                *(
                    [plain("; ".join(f"{name}: {value}" for name, value in arm.tags.items())) or NOTHING]
                    if tagged
                    else []
                ),
                "the baseline's" if same else kernels,
            )
        )
    headers = (
        "cost",
        "build s",
        "peak above inputs",
        "host µs a call",
        "registered as",
        "graphs",
        "launches a sample",
        *(["chosen config"] if tagged else []),
        "kernels seen",
    )
    return table(headers, rows, right=(1, 2, 3, 5, 6))


def context_table(comparisons: Sequence[Comparison]) -> str:
    """Every candidate in every context beside its result alone, or the empty string."""
    alone = {(one.case.id, arm.id): arm for one in comparisons if one.context is None for arm in one.candidates}
    rows = []
    for one in comparisons:
        for arm in one.candidates if one.context is not None else ():
            single = alone.get((one.case.id, arm.id))
            rows.append(
                (
                    code(one.case.id),
                    plain(one.context or ""),
                    code(arm.id),
                    f"{text.ratio_span(single.ratio)} {single.outcome}" if single else NOTHING,
                    text.ratio_span(arm.ratio),
                    plain(f"{arm.outcome}: {arm.reason.split(':')[0] if arm.reason == one.invalid else arm.reason}")
                    if arm.reason
                    else str(arm.outcome),
                    context_flag(single, arm),
                    text.us_span(arm.time_us),
                )
            )
    headers = ("case", "context", "candidate", "alone", "in context", "outcome in context", "flag", "µs in context")
    return table(headers, rows, right=(3, 4, 7)) if rows else ""


def context_flag(alone: ArmVerdict | None, within: ArmVerdict) -> str:
    """What a reader must not overlook when a result alone and in context differ."""
    if alone is None or alone.outcome is not Outcome.FASTER:
        return ""
    return {Outcome.SLOWER: "**wins alone, loses in context**", Outcome.TIE: "**gain is gone in context**"}.get(
        within.outcome, ""
    )


def clock_summary(card: CardVerdict) -> str:
    """How far other clocks agree that read the same callables in the same run."""
    if card.profiler_agreement is None and card.do_bench_agreement is None:
        return "These measurements were made without `--cross-checks` (do_bench and CUPTI)."
    said = [
        _agreement("CUPTI through the torch profiler", card.profiler_agreement),
        _agreement("`triton.testing.do_bench`", card.do_bench_agreement),
    ]
    return "\n\n".join(filter(None, said))


def clock_table(card: CardVerdict) -> str:
    """Our times beside those of other clocks; empty without cross-checks."""
    rows = [
        (
            code(one.case.id + (f" in {one.context}" if one.context else "")),
            code(arm.id),
            text.us(arm.time_us.estimate),
            text.us(arm.profiler_us),
            text.us(arm.do_bench_us),
            f"{arm.time_us.estimate / arm.profiler_us:.3f}" if arm.profiler_us else NOTHING,
            f"{arm.time_us.estimate / arm.do_bench_us:.3f}" if arm.do_bench_us else NOTHING,
            {None: NOTHING, True: "yes", False: "**no**"}[arm.clocks_agree],
        )
        for one, *_ in by_measurement(card.comparisons)
        for arm in one.arms
        if arm.cross_checked and arm.time_us is not None
    ]
    headers = (
        "case", "arm", "our µs", "CUPTI µs", "do_bench µs", "ours / CUPTI", "ours / do_bench", "agrees with CUPTI",
    )  # fmt: skip
    return table(headers, rows, right=range(2, 7)) if rows else ""


def _agreement(clock: str, found: Agreement | None) -> str:
    if found is None:
        return ""
    return (
        f"Ours over {clock}: median {found.median:.3f}, from {found.lowest:.3f} to {found.highest:.3f}, "
        f"{found.arms} callables" + (f", of which {found.agreeing} agree." if found.agreeing is not None else ".")
    )


def phase_table(comparisons: Sequence[Comparison]) -> str:
    """Wall seconds of every measurement by phase, and in total."""
    comparisons = [one for one, *_ in by_measurement(comparisons)]
    phases = list(dict.fromkeys(phase for one in comparisons for phase in one.phases_s))
    rows = [
        [
            code(one.case.id + (f" in {one.context}" if one.context else "")),
            *(f"{one.phases_s.get(phase, 0.0):.1f}" for phase in phases),
            f"{sum(one.phases_s.values()):.1f}",
        ]
        for one in comparisons
    ]
    totals = [sum(one.phases_s.get(phase, 0.0) for one in comparisons) for phase in phases]
    rows.append(["**all**", *(f"**{total:.1f}**" for total in totals), f"**{sum(totals):.1f}**"])
    headers = ["seconds", *map(plain, phases), "together"]
    return table(headers, rows, right=range(1, len(headers)))
