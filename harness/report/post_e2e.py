"""The end-to-end part of a post: what changed in each model, what was possible, and every arm beside it."""

from collections.abc import Iterator, Sequence

from harness.report import text
from harness.report.conclusion import BASELINE, leader_of
from harness.report.e2e import so_many
from harness.report.text import NOTHING, Links, code, plain, table
from harness.schema.e2e_verdict import CellVerdict, Figures, ModelArmVerdict
from harness.schema.figures import Span


def sections(cells: Sequence[CellVerdict], links: Links) -> list[str]:
    """Markdown of every cell: `Metric | baseline | candidate | change`, then the arms, then the evidence."""
    return [part for cell in cells for part in _cell(cell, links)]


def _cell(cell: CellVerdict, links: Links) -> Iterator[str]:
    leader = leader_of(cell)
    context = f", wired with its neighbours ({cell.context})" if cell.context else ""
    closed = "; closed by what was possible" if cell.closed_by_ceiling else ""
    yield f"#### {plain(cell.title)}, {plain(cell.what)}{plain(context)}: {cell.verdict}{closed}"
    if cell.reason:
        yield f"{plain(cell.reason)}."
    if cell.stale:
        yield f"**Stale:** {plain('; '.join(cell.stale))}."
    named = code(leader.id) if leader is not None else "candidate"
    yield table(("metric", BASELINE, named, "change in time"), list(_metrics(cell, leader)), right=(1, 2, 3))
    arms = [*([cell.twin] if cell.twin is not None else []), *cell.candidates]
    headers = ("arm", "against static shapes", "against dynamic", "processes", "of what was possible", "verdict")
    yield table(headers, [_arm(arm) for arm in arms], right=(1, 2, 3, 4))
    reasons = [f"- {code(arm.id)}: {plain(arm.reason)}" for arm in arms if arm.reason]
    if reasons:
        yield "\n".join(reasons)
    evidence = ", ".join(text.evidence_link(one, links) for one in cell.evidence)
    yield (
        f"{plain(cell.library)} model code, {'random weights' if cell.checkpoint is None else 'a real checkpoint'}, "
        f"attention {plain(cell.attention_backend)}; processes: {so_many(cell)}"
        f"{'' if cell.finished else ', not finished'}; evidence {evidence}."
    )


def _metrics(cell: CellVerdict, leader: ModelArmVerdict | None) -> Iterator[tuple[str, str, str, str]]:
    yield (
        plain(f"{cell.what}, ms"),
        f"{cell.baseline_ms.estimate:.2f}",
        f"{leader.time_ms.estimate:.2f}" if leader is not None and leader.time_ms is not None else NOTHING,
        change(leader.gain_pct) if leader is not None else NOTHING,
    )
    for request in cell.compositions:
        share = f"this component is {100 * request.share:.1f} % of it; left out: {request.excluded}"
        verdict = f"{change(request.figures.gain_pct)} {request.figures.verdict}"
        yield plain(f"request: {request.what} ({share})"), "", "", verdict
    if cell.dynamic_over_static is not None:
        yield "baseline with `dynamic=True`, times the static one", f"{cell.dynamic_over_static:.3f}", "", ""
    if cell.dynamic_left_out:
        yield f"baseline with `dynamic=True`, clearly beaten and left out: {plain(cell.dynamic_left_out)}", "", "", ""
    if cell.twin is not None and cell.twin.to_static is not None:
        yield "noise: the baseline compiled a second time (A/A)", "", "", change(cell.twin.to_static.gain_pct)
    if cell.ceiling_pct is not None:
        yield "what was possible: the op left out", "", "", change(cell.ceiling_pct)
    if cell.opaque_pct is not None:
        yield "the lost fusion: native behind a custom op", "", "", change(cell.opaque_pct)
    if cell.roofline_pct is not None:
        yield "the op's bytes at copy speed, of the component", f"{cell.roofline_pct:.2f} %", "", ""


def change(span: Span | None) -> str:
    """A gain as the change in time that it is: negative is faster; no more than noise where the interval holds 0."""
    if span is None:
        return NOTHING
    noise = " (noise)" if span.lower <= 0 <= span.upper else ""
    return f"{-span.estimate:+.2f} % [{-span.upper:+.2f}, {-span.lower:+.2f}]{noise}"


def _arm(arm: ModelArmVerdict) -> tuple[str, ...]:
    both = [figures for figures in (arm.to_static, arm.to_dynamic) if figures is not None]
    return (
        code(arm.id),
        change(arm.to_static.gain_pct) if arm.to_static is not None else NOTHING,
        change(arm.to_dynamic.gain_pct) if arm.to_dynamic is not None else NOTHING,
        str(max(figures.processes for figures in both)) if both else NOTHING,
        text.share(arm.share_of_possible),
        f"{arm.verdict}{_settle(both)}",
    )


def _settle(both: Sequence[Figures]) -> str:
    more = max((figures.more_processes or 0 for figures in both), default=0)
    return f", {more} more processes would settle it" if more else ""


def quality_table(cells: Sequence[CellVerdict]) -> str:
    """What wiring each leader did to the model's output, or the empty string."""
    rows = []
    for cell in cells:
        leader = leader_of(cell)
        if leader is None or leader.quality is None:
            continue
        quality = leader.quality
        calls = leader.calls
        seen = None if calls is None else calls.compiled if calls.compiled is not None else calls.eager
        rows.append(
            (
                plain(f"{cell.title}, {cell.what}"),
                code(leader.id),
                f"{quality.ratio:.3f}",
                "yes" if quality.bit_exact else "no",
                str(leader.tier) if leader.tier is not None else NOTHING,
                f"{seen} of {calls.expected}" if calls is not None and seen is not None else NOTHING,
                f"{quality.psnr_db:.1f} dB" if quality.psnr_db is not None else NOTHING,
                f"{quality.ssim:.4f}" if quality.ssim is not None else NOTHING,
                f"{quality.lpips:.4f}" if quality.lpips is not None else NOTHING,
            )
        )
    headers = (
        "model", "candidate", "error against fp32 / native's", "output bit-exact", "tier", "calls that ran it", "PSNR",
        "SSIM", "LPIPS",
    )  # fmt: skip
    return table(headers, rows, right=(2, 6, 7, 8)) if rows else ""
