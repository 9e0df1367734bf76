"""`harness subissue OP`: the sub-issue of a row that native + torch.compile keeps, with the numbers that say so."""

from collections.abc import Iterator

from harness.errors import UserError
from harness.report.conclusion import BASELINE, conclusion, leader_of
from harness.report.matrix_notes import gpu_cells
from harness.report.post import (
    device_of,
    e2e_sections,
    microbench_sections,
    platform_table,
    quality_sections,
    reproduce,
    require_evidence,
    stale,
)
from harness.report.post_e2e import change
from harness.report.text import Links, code, plain
from harness.report.untested import not_tested
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.verdict import RowVerdict
from harness.schema.vocabulary import Tracker


def subissue_markdown(row: RowVerdict, base_url: str = "") -> str:
    """The sub-issue, its title in a comment on the first line.

    Raises UserError where the row is not ❌ end to end, or where its evidence is stale.
    """
    require_evidence(row)
    require_symbol(row, Tracker.NEGATIVE, "a sub-issue is for a row that is ❌ end to end")
    links = Links(base_url)
    parts = [
        f"<!-- title: {comment(f'{row.title}: {BASELINE} stays on {device_of(row)}')} -->",
        f"**{conclusion(row)}**",
        f"The row {plain(row.title)} of the kernel matrix: µbench {row.microbench.symbol}, E2E {row.e2e.symbol}; no PR "
        "follows. A candidate that loses here loses on this GPU, with these versions and in these models.",
        f"### What was possible, and what would reopen the row\n\n{_possible(row)}",
        *e2e_sections(row, links),
        *microbench_sections(row, links),
        *quality_sections(row),
        f"### Platform\n\n{platform_table(row)}",
        f"### Not tested\n\n{not_tested(row)}",
        f"### Reproduce\n\n{reproduce(row, links)}",
    ]
    return "\n\n".join(parts) + "\n"


def require_symbol(row: RowVerdict, symbol: Tracker, what: str) -> None:
    """Raises UserError where the row's E2E is another one, or stale: neither may be posted as a decision."""
    if row.e2e.symbol is not symbol:
        cells = gpu_cells(row)
        missing = [model for model in row.deciding_models if model not in {cell.workload for cell in cells}]
        hint = f"run `make e2e OP={row.op}`" + (f" ({', '.join(missing)} did not run yet)" if missing else "")
        if row.e2e.symbol is Tracker.POSITIVE:
            hint = f"write `harness pr {row.op}`"
        elif row.e2e.symbol is Tracker.NEGATIVE:
            hint = f"write `harness subissue {row.op}`"
        raise UserError(
            f"{row.op}: {what}; its µbench is {row.microbench.symbol} and its E2E is {row.e2e.symbol}; {hint}."
        )
    if reasons := stale(row):
        raise UserError(
            f"{row.op}: its evidence is stale ({'; '.join(reasons)}), so it decides nothing now; measure it again."
        )


def _possible(row: RowVerdict) -> str:
    tried = [cell for cell in gpu_cells(row) if cell.candidates]
    return "\n".join(f"- {plain(cell.title)}, {plain(cell.what)}: {'; '.join(_of(cell))}." for cell in tried)


def _of(cell: CellVerdict) -> Iterator[str]:
    leader = leader_of(cell)
    if leader is not None:
        yield f"{code(leader.id)} changes its time by {change(leader.gain_pct)}"
    if cell.ceiling_pct is None:
        yield "what was possible was not measured"
    elif cell.closed_by_ceiling:
        yield f"leaving the op out changes it by {change(cell.ceiling_pct)}, so no kernel can win 1 % here"
    else:
        floor = f", of which the op's bytes at copy speed are {cell.roofline_pct:.2f} %" if cell.roofline_pct else ""
        yield f"leaving the op out changes it by {change(cell.ceiling_pct)}{floor}"
        yield "a kernel that saves 1 % would reopen the row"
    if cell.opaque_pct is not None:
        yield f"native behind a custom op, a fusion barrier, changes it by {change(cell.opaque_pct)}"


def comment(title: str) -> str:
    """Text that may stand in an HTML comment."""
    return " ".join(title.split()).replace("--", "- -").replace(">", "›")
