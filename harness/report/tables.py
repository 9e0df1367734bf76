"""The tables of an op's page."""

from collections.abc import Sequence

from harness.report import text
from harness.report.text import NOTHING, code, kernel_name, plain, table
from harness.schema.verdict import Agreement, ArmVerdict, CardVerdict, Comparison, StepVerdict, by_measurement
from harness.schema.vocabulary import Outcome, Role
from harness.verdict.steps import COMPETING


def step_table(step: StepVerdict) -> str:
    """All candidates on one step, the leader marked."""
    rows = [
        (
            code(one.id) + (" ← leader" if one.id == step.leader else ""),
            text.kind(one.kind),
            text.ratio_span(one.ratio),
            plain(f"{one.outcome}: {one.reason}") if one.reason else str(one.outcome),
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
    return table(headers, rows, right=(2, 4, 5, 6, 7)) if rows else "No candidate was tried."


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
        return f"INVALID: {one.invalid}"
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
    if rivals:
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
            _outcome(arm),
            text.share(arm.copy_share),
            text.share(arm.floor_share),
        )
        for arm in timed
    ]
    unit = f"µs, {one.cache}"
    return table(("arm", "kind", unit, "to torch.compile", "outcome", "of copy", "of floor"), rows, right=(2, 3, 5, 6))


def _outcome(arm: ArmVerdict) -> str:
    if arm.role is Role.BASELINE:
        return plain(arm.reason) or "baseline"
    said = f"{arm.outcome}: {arm.reason}" if arm.reason else str(arm.outcome)
    return plain("; ".join([said, *arm.notes]))


def _rivals(arms: Sequence[ArmVerdict]) -> str:
    names = [arm.id for arm in arms]
    rows = [
        [code(arm.id), *(text.ratio_span(arm.rivals.get(name)) if name != arm.id else NOTHING for name in names)]
        for arm in arms
    ]
    headers = ["ratio of the row to the column", *(code(name) for name in names)]
    return table(headers, rows, right=range(1, len(names) + 1))


def _gates(arms: Sequence[ArmVerdict]) -> str:
    rows = []
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
                plain("; ".join([", ".join(gate.variants), *gate.notes])),
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
        "inputs",
    )
    return table(headers, rows, right=(3, 4, 5, 6, 7))


def _costs(arms: Sequence[ArmVerdict]) -> str:
    rows = [
        (
            code(arm.id),
            f"{arm.build_s:.2f}",
            text.mib(arm.peak_bytes),
            text.us(arm.host_us),
            arm.registration,
            NOTHING if arm.graph_count is None else str(arm.graph_count),
            str(arm.launches),
            plain("; ".join(f"{name}: {value}" for name, value in arm.tags.items())) or NOTHING,
            " ".join(code(kernel_name(kernel)) for kernel in arm.kernels),
        )
        for arm in arms
    ]
    headers = (
        "cost",
        "build s",
        "peak above inputs",
        "host µs a call",
        "registered as",
        "graphs",
        "launches a sample",
        "chosen config",
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
                    plain(f"{arm.outcome}: {arm.reason}") if arm.reason else str(arm.outcome),
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


def clock_table(card: CardVerdict) -> str:
    """Our times beside those of other clocks that read the same callables in the same run."""
    if card.profiler_agreement is None and card.do_bench_agreement is None:
        return "These measurements were made without cross-checks."
    said = [
        _agreement("CUPTI through the torch profiler", card.profiler_agreement),
        _agreement("`triton.testing.do_bench`", card.do_bench_agreement),
    ]
    rows = [
        (
            code(one.case.id + (f" in {one.context}" if one.context else "")),
            code(arm.id),
            text.us(arm.time_us.estimate),
            text.us(arm.profiler_us),
            text.us(arm.do_bench_us),
            f"{arm.time_us.estimate / arm.profiler_us:.3f}" if arm.profiler_us else NOTHING,
            f"{arm.time_us.estimate / arm.do_bench_us:.3f}" if arm.do_bench_us else NOTHING,
        )
        for one, *_ in by_measurement(card.comparisons)
        for arm in one.arms
        if arm.cross_checked and arm.time_us is not None
    ]
    headers = ("case", "arm", "our µs", "CUPTI µs", "do_bench µs", "ours / CUPTI", "ours / do_bench")
    return "\n\n".join([*filter(None, said), table(headers, rows, right=range(2, 7))])


def _agreement(clock: str, found: Agreement | None) -> str:
    if found is None:
        return ""
    return (
        f"Ours over {clock}: median {found.median:.3f}, from {found.lowest:.3f} to {found.highest:.3f}, "
        f"{found.arms} callables."
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
