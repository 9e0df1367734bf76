"""`reports/rehearsal.md`: what ran on a CPU. It shows that everything runs; it says nothing about a GPU."""

from harness.report import text
from harness.report.matrix import device_name, execution, software
from harness.report.text import code, plain, table
from harness.schema.verdict import ArmVerdict, Comparison, Verdicts, by_measurement
from harness.schema.vocabulary import ArmStatus

HEADERS = ("twin", "stands for", "torch.compile µs", "candidate", "kind", "µs", "to torch.compile", "gate", "outcome")


def render(verdicts: Verdicts) -> str:
    """One table for each op and CPU."""
    parts = [
        "# Rehearsal on a CPU",
        "Small twins of the cases, timed where a CPU can: torch.compile and rewrites. Triton kernels pass the gate in "
        "Triton's interpreter and are never timed; CUDA kernels need a GPU. **Nothing here decides a row**: see "
        "[matrix](matrix.md).",
    ]
    rehearsals = [(row, card) for row in verdicts.rows for card in row.rehearsals]
    if not rehearsals:
        parts.append("Nothing was rehearsed yet.")
    for row, card in rehearsals:
        groups = by_measurement(card.comparisons)
        rows = [_line(group, arm) for group in groups for arm in group[0].candidates]
        parts += [
            f"## {plain(row.title)} (`{row.op}`) on {plain(device_name(card, row))}",
            plain(f"{software(card)}; {execution(card)}; {len(groups)} measurements of small twins."),
            table(HEADERS, rows, right=(2, 5, 6)),
        ]
    return "\n\n".join(parts) + "\n"


def _line(group: list[Comparison], arm: ArmVerdict) -> tuple[str, ...]:
    one = group[0]
    base = one.baseline
    context = f" in {one.context}" if one.context else ""
    others = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return (
        text.short_shape(one.case),
        f"{code(one.case.id + context)}{others}",
        text.us(base.time_us.estimate) if base is not None and base.time_us is not None else text.NOTHING,
        code(arm.id),
        text.kind(arm.kind),
        text.us_span(arm.time_us),
        text.ratio_span(arm.ratio),
        text.NOTHING if arm.gate is None else "passed" if arm.gate.passed else "FAILED",
        plain(_outcome(one, arm)),
    )


def _outcome(one: Comparison, arm: ArmVerdict) -> str:
    if arm.status is ArmStatus.REHEARSED:
        return "not timed: rehearsed in Triton's interpreter"
    said = f"{arm.outcome}: {arm.reason}" if arm.reason else str(arm.outcome)
    if one.case_changed:
        return f"{said} (the manifest's sizes have changed)"
    return f"{said} (stale)" if one.stale else said
