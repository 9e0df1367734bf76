"""`reports/e2e.md`: every end-to-end cell, with its arms, what was possible, and what it means for whole requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report import text
from harness.report.matrix_notes import gpu_cells
from harness.report.pictures import Picture, shown
from harness.report.text import NOTHING, code, plain, table
from harness.schema.e2e_verdict import CellVerdict, Figures, ModelArmVerdict
from harness.schema.figures import Span
from harness.schema.process import CallsRecord
from harness.schema.verdict import Verdicts

_INTRO = """# End to end

A candidate wired into the library's own model code against native + torch.compile of its repeated blocks (or decoder),
static shapes and `dynamic=True`: a gain must hold against the faster of the two. Gains are percent of the baseline's
time saved, with the rule's own interval (2.5 % per side over all looks); WIN: at least 1 %, NO_WIN: below 1 %.
Processes are fresh starts of the program, every other one with cold compile caches."""


def render(verdicts: Verdicts) -> str:
    """The page; cells of GPUs first, rehearsals on CPUs in a table of their own."""
    cells = [cell for row in verdicts.rows for cell in row.cells]
    on_gpu = [cell for row in verdicts.rows for cell in gpu_cells(row)]
    broken_off = [cell for cell in cells if cell.device.type == "cuda" and cell not in on_gpu]
    rehearsed = [cell for cell in cells if cell.device.type != "cuda"]
    parts = [_INTRO]
    if on_gpu:
        parts.append(table(_HEADERS, [_overview(cell) for cell in on_gpu], right=range(2, 6)))
    parts += [picture for row in verdicts.rows if (picture := shown(row, Picture.E2E))]
    parts += [section for cell in on_gpu for section in _cell(cell)]
    if broken_off:
        parts.append("# Broken off\n\nAnother card has finished these cells; they count for nothing.")
        parts += [section for cell in broken_off for section in _cell(cell)]
    if rehearsed:
        parts.append(
            "## Rehearsals on a CPU\n\nTiny twins that show that everything runs. They decide nothing and never enter "
            "the matrix."
        )
        parts.append(table(_HEADERS, [_overview(cell) for cell in rehearsed], right=range(2, 6)))
    return "\n\n".join(parts) + "\n"


_HEADERS = ("op", "model, component", "do-nothing ceiling", "roofline of the op", "twin", "leader's gain", "verdict")


def _overview(cell: CellVerdict) -> tuple[str, ...]:
    leader = next((arm for arm in cell.candidates if arm.id == cell.leader), None)
    twin = cell.twin.to_static if cell.twin is not None else None
    return (
        code(_op(cell)),
        plain(f"{cell.title}, {cell.what}"),
        gain(cell.ceiling_pct),
        f"{cell.roofline_pct:.2f} %" if cell.roofline_pct is not None else NOTHING,
        gain(twin.gain_pct if twin is not None else None),
        f"{code(leader.id)} {gain(leader.gain_pct)}" if leader is not None else NOTHING,
        str(cell.verdict)
        + (" (closed by its ceiling)" if cell.closed_by_ceiling else "")
        + (f": {plain(cell.reason)}" if cell.reason else ""),
    )


def _op(cell: CellVerdict) -> str:
    return cell.op if cell.context is None else f"{cell.op} ({cell.context})"


def gain(span: Span | None) -> str:
    """A gain in percent with its interval."""
    return NOTHING if span is None else f"{span.estimate:+.2f} % [{span.lower:+.2f}, {span.upper:+.2f}]"


def without_dynamic(cell: CellVerdict) -> str:
    """Why the verdicts are against the static baseline alone."""
    return f"dynamic=True is clearly beaten and left out: {cell.dynamic_left_out}"


def _cell(cell: CellVerdict) -> Iterator[str]:
    yield f"## {plain(_op(cell))} in {plain(cell.title)}: {cell.verdict}"
    if cell.reason:
        yield f"{plain(cell.reason)}."
    if cell.stale:
        yield f"Stale: {plain('; '.join(cell.stale))}."
    dynamic = f", dynamic {cell.dynamic_over_static:.3f}× of it" if cell.dynamic_over_static is not None else ""
    if cell.dynamic_left_out:
        dynamic = f"; {without_dynamic(cell)}"
    rows = [
        ("component", f"{cell.workload}/{cell.component}: {cell.what}"),
        ("device", f"{cell.device.name} (card {cell.device.uuid}), driver {cell.versions.get('driver', '?')}"),
        ("ranks", _ranks(cell)),
        ("model code", f"{cell.library}; attention {cell.attention_backend}"),
        ("weights", cell.checkpoint or "random, the same bytes on every device"),
        ("software", ", ".join(f"{name} {version}" for name, version in cell.versions.items() if name != "driver")),
        ("baseline", f"{cell.baseline_ms.estimate:.2f} ms a run{dynamic}"),
        ("leaving the op out", gain(cell.ceiling_pct)),
        ("native behind a custom op", gain(cell.opaque_pct)),
        ("the op's bytes at copy speed", _roofline(cell)),
        ("known positive", _positive(cell)),
        ("processes", _processes(cell)),
    ]
    yield table(("item", "value"), [(name, plain(value)) for name, value in rows if value])
    yield "Evidence: " + ", ".join(text.evidence_link(one) for one in cell.evidence)
    arms = [*([cell.twin] if cell.twin is not None else []), *cell.candidates]
    yield table(_ARM_HEADERS, [_arm(arm) for arm in arms], right=range(1, 5))
    for arm in arms:
        if arm.reason:
            yield f"- {code(arm.id)}: {plain(arm.reason)}"
    yield from (f"- {code(arm.id)} against native's output: {seen}" for arm in arms if (seen := _on_real_weights(arm)))
    yield from _requests(cell)


def _ranks(cell: CellVerdict) -> str:
    if (of := cell.ranks) is None:
        return ""
    return f"{of.ranks}, {text.together(of, 'ms a run', lambda us: f'{us / 1e3:.2f}', str)}"


def _roofline(cell: CellVerdict) -> str:
    return f"{cell.roofline_pct:.2f} % of the component" if cell.roofline_pct else ""


def _positive(cell: CellVerdict) -> str:
    if cell.positive is None:
        return ""
    return f"the baseline against itself slowed by {cell.slowdown_pct:g} %: {gain(cell.positive.gain_pct)}, " + str(
        cell.positive.verdict
    )


def _processes(cell: CellVerdict) -> str:
    open_ = "" if cell.finished else "; not finished"
    return f"{so_many(cell)}{open_}; sequence {cell.sequence}"


def so_many(cell: CellVerdict) -> str:
    """Processes there are, of how many: these are declared once process 0 has shown what one costs."""
    return f"{len(cell.evidence)} of at most {cell.p_max}" if cell.p_max is not None else f"{len(cell.evidence)}"


_ARM_HEADERS = (
    "arm", "against static", "against dynamic", "of the possible", "error / native's", "calls", "verdict",
)  # fmt: skip


def _arm(arm: ModelArmVerdict) -> tuple[str, ...]:
    return (
        code(arm.id),
        _figures(arm.to_static),
        _figures(arm.to_dynamic),
        text.share(arm.share_of_possible),
        f"{arm.quality.ratio:.3f} ({arm.tier}, claims {arm.contract})" if arm.quality is not None else NOTHING,
        _calls(arm.calls),
        str(arm.verdict),
    )


def _on_real_weights(arm: ModelArmVerdict) -> str:
    """What is said of the output with a real checkpoint only; on random weights these pass anything."""
    quality = arm.quality
    if quality is None:
        return ""
    figures = (
        ("PSNR", quality.psnr_db, ".1f", " dB"),
        ("SSIM", quality.ssim, ".4f", ""),
        ("LPIPS", quality.lpips, ".4f", ""),
    )
    return ", ".join(f"{name} {value:{form}}{unit}" for name, value, form, unit in figures if value is not None)


def _calls(calls: CallsRecord | None) -> str:
    """Calls seen in the timed callable, or in an eager run where those cannot be counted."""
    seen = None if calls is None else calls.compiled if calls.compiled is not None else calls.eager
    return NOTHING if calls is None or seen is None else f"{seen} of {calls.expected}"


def _figures(figures: Figures | None) -> str:
    if figures is None:
        return NOTHING
    more = figures.more_processes
    settle = f"; {more} more {'processes' if more > 1 else 'process'} would settle it" if more else ""
    of = "process" if figures.processes == 1 else "processes"
    return f"{gain(figures.gain_pct)}, {figures.processes} {of}{settle}"


def _requests(cell: CellVerdict) -> Iterator[str]:
    rows: Sequence[tuple[str, ...]] = [
        (
            plain(one.what),
            f"{100 * one.share:.1f} %",
            gain(one.figures.gain_pct),
            str(one.figures.verdict),
            plain(one.excluded),
        )
        for one in cell.compositions
    ]
    if rows:
        headers = ("request", "component's share", "gain of the request", "verdict", "left out")
        yield table(headers, rows, right=range(1, 3))
    if cell.unmeasured_parts:
        yield f"Not measured on this device: {plain(', '.join(cell.unmeasured_parts))}."
    if cell.share_table:
        yield "What the component's gain would be of a request, by the component's share of it:"
        shares = [f"{share:g} %" for share, _ in cell.share_table]
        yield table(shares, [[f"{value:+.3f} %" for _, value in cell.share_table]])
