"""From the end-to-end cells of an op to its cell of the matrix.

* ✅ where the leading candidate of some deciding model wins a measured composition on a named GPU, after Holm's
  correction over all compositions of the row, and the same candidate regresses in no tested model;
* ❌ only where every deciding model was tested and nothing can win: each candidate is NO_WIN, or even the ceiling is
  under the bar;
* ⏳ otherwise, with what is missing.

A component's own verdict turns no row ✅: without its partners nothing is known of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.schema.claims import Claims, TrackerName
from harness.schema.e2e_verdict import CellVerdict, CompositionVerdict, Verdict
from harness.schema.figures import Span
from harness.schema.manifest import Manifest
from harness.schema.verdict import Cell, Won
from harness.schema.vocabulary import Tracker
from harness.stats.combine import holm
from harness.verdict.claimed import claimed, signed


def e2e_cell(manifest: Manifest, claims: Claims, cells: Sequence[CellVerdict]) -> Cell:
    """The row's E2E cell, from what ran on GPUs."""
    claim = claims.claim(manifest.op, TrackerName.E2E)
    on_gpu = counted([cell for cell in cells if cell.device.type == "cuda"])
    if not on_gpu:
        return claimed(claim)
    symbol, notes, won = _row(manifest, on_gpu)
    stale = sorted({reason for cell in on_gpu for reason in cell.stale})
    said_stale = (f"stale: {'; '.join(stale)}",) if stale else ()
    cell = Cell(symbol=symbol, stale=bool(stale), notes=(*notes, *said_stale), won=won)
    return signed(cell, claim)


def counted(cells: Sequence[CellVerdict]) -> list[CellVerdict]:
    """Without the sequences that were broken off where another card of the kind has finished one of the same cell."""
    finished = {_same_cell(cell) for cell in cells if cell.finished}
    return [cell for cell in cells if cell.finished or _same_cell(cell) not in finished]


def _same_cell(cell: CellVerdict) -> tuple[str, str, str, str | None]:
    return cell.device.key, cell.workload, cell.component, cell.context


def _row(manifest: Manifest, cells: Sequence[CellVerdict]) -> tuple[Tracker, tuple[str, ...], Won | None]:
    several = len({cell.device.name for cell in cells}) > 1
    notes = [note for cell in cells for note in _cell_notes(cell, several)]
    deciding = [cell for cell in cells if cell.workload in manifest.deciding_models]
    missing = [model for model in manifest.deciding_models if model not in {cell.workload for cell in cells}]
    tested = {(cell.workload, cell.component) for cell in cells}
    parts = {(cell.workload, part) for cell in deciding for part in cell.own_parts} - tested
    missing += [f"{model}/{part}" for model, part in sorted(parts)]
    if missing:
        command = f"make e2e OP={manifest.op}" + (f" MODEL={missing[0]}" if len(missing) == 1 else "")
        notes.append(f"not run: {', '.join(missing)}{_needs(manifest, missing)} ({command})")
    winners = _winners(deciding)
    for cell, composition in winners:
        losses = list(_regressions(cells, cell.leader))
        if not losses:
            return Tracker.POSITIVE, (_won_note(cell, composition), *notes), _won(cell, composition)
        notes += losses
    if not missing and deciding and all(_nothing_wins(cell) for cell in deciding):
        return Tracker.NEGATIVE, tuple(notes), None
    return Tracker.IN_PROGRESS, tuple(notes), None


def _needs(manifest: Manifest, missing: Sequence[str]) -> str:
    models = {name.partition("/")[0] for name in missing}
    ranks = max((case.ranks for case in manifest.cases if case.model in models), default=1)
    return f"; needs {ranks} devices of one host" if ranks > 1 else ""


def _winners(cells: Sequence[CellVerdict]) -> list[tuple[CellVerdict, CompositionVerdict]]:
    """Compositions that are WIN on their own and after Holm's correction over all of the row's.

    The leader is the best of a cell's candidates on the very processes that judge it, so its p-value counts once for
    each candidate that could have led (Bonferroni).
    """
    pairs = [(cell, composition) for cell in cells for composition in cell.compositions]
    holds = holm([min(1.0, _led_among(cell) * composition.figures.win_p_value) for cell, composition in pairs])
    return [pair for pair, held in zip(pairs, holds, strict=True) if held and pair[1].figures.verdict is Verdict.WIN]


def _led_among(cell: CellVerdict) -> int:
    return sum(arm.gain_pct is not None and arm.verdict is not Verdict.INVALID for arm in cell.candidates)


def _regressions(cells: Sequence[CellVerdict], candidate: str | None) -> Iterator[str]:
    for cell in cells:
        for arm in cell.candidates:
            figures = [one for one in (arm.to_static, arm.to_dynamic) if one is not None]
            if arm.id == candidate and any(one.regression for one in figures):
                yield f"{arm.id} slows {cell.workload} down ({said(arm.gain_pct)}): it needs a guard there"


def _nothing_wins(cell: CellVerdict) -> bool:
    tested = [arm for arm in cell.candidates if arm.verdict is not Verdict.NOT_RUN]
    return cell.closed_by_ceiling or (bool(tested) and all(arm.verdict is Verdict.NO_WIN for arm in tested))


def _won(cell: CellVerdict, composition: CompositionVerdict) -> Won:
    assert cell.leader is not None, "a request won by nobody"
    return Won(
        candidate=cell.leader,
        workload=cell.workload,
        component=cell.component,
        context=cell.context,
        device_uuid=cell.device.uuid,
        composition=composition.id,
    )


def _won_note(cell: CellVerdict, composition: CompositionVerdict) -> str:
    return (
        f"{cell.leader} wins {cell.title}, {composition.what}, on {cell.device.name}: "
        f"{said(composition.figures.gain_pct)} of the request ({composition.excluded} left out)"
    )


def _cell_notes(cell: CellVerdict, several_devices: bool) -> Iterator[str]:
    where = f"{cell.wired_in} ({cell.what})" + (f" on {cell.device.name}" if several_devices else "")
    leader = next((arm for arm in cell.candidates if arm.id == cell.leader), None)
    if leader is None:
        by_reason: dict[str, list[str]] = {}
        for arm in cell.candidates:
            by_reason.setdefault(arm.reason, []).append(arm.id)
        why = "; ".join(f"{', '.join(arms)}: {reason}" for reason, arms in by_reason.items())
        yield f"{where}: {cell.verdict}, {why or 'no candidate was timed'}"
    else:
        yield f"{where}: {leader.id} {said(leader.gain_pct)} of the component, {leader.verdict}"
        for arm in cell.candidates:
            if arm.verdict is Verdict.INVALID:
                yield f"{where}: {arm.id} INVALID, {arm.reason}"
    if cell.closed_by_ceiling:
        yield f"{where}: even leaving the op out gains {said(cell.ceiling_pct)}"


def said(gain: Span | None) -> str:
    """A gain with its interval, as notes print it."""
    return "no figure" if gain is None else f"{gain.estimate:+.2f} % [{gain.lower:+.2f}, {gain.upper:+.2f}]"
