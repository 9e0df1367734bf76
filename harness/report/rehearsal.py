"""`reports/rehearsal.md`: what ran on a CPU. It shows that everything runs; it says nothing about a GPU."""

from harness.report import text
from harness.report.matrix import device_name, execution, software
from harness.report.text import code, plain, table
from harness.schema.verdict import ArmVerdict, Comparison, Verdicts
from harness.schema.vocabulary import ArmStatus


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
        rows = [_line(one, arm) for one in card.comparisons for arm in one.candidates]
        headers = ("case", "twin", "torch.compile µs", "candidate", "kind", "µs", "to torch.compile", "gate", "outcome")
        parts += [
            f"## {plain(row.title)} (`{row.op}`) on {plain(device_name(card, row))}",
            plain(f"{software(card)}; {execution(card)}; {len(card.comparisons)} comparisons."),
            table(headers, rows, right=(2, 5, 6)),
        ]
    return "\n\n".join(parts) + "\n"


def _line(one: Comparison, arm: ArmVerdict) -> tuple[str, ...]:
    base = one.baseline
    context = f" in {one.context}" if one.context else ""
    return (
        code(one.case.id + context),
        text.short_shape(one.case),
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
