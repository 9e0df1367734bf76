"""The one sentence of a post: what the evidence says of a row, in Markdown, and nothing that it does not say."""

from collections.abc import Sequence

from harness.report import text
from harness.report.matrix_notes import gpu_cells
from harness.report.text import code, plain
from harness.schema.e2e_verdict import CellVerdict, CompositionVerdict, ModelArmVerdict
from harness.schema.figures import Span
from harness.schema.verdict import CardVerdict, Comparison, RowVerdict, StepVerdict
from harness.schema.vocabulary import Method, Outcome, Tracker

BASELINE = "native + torch.compile"
_SPELLED_OUT = 3
"""Steps whose ratios one sentence can hold."""


def conclusion(row: RowVerdict) -> str:
    """The row's verdict: end to end where a model ran, else the µbench, and that it is no more than that."""
    cells = gpu_cells(row)
    if not cells:
        return f"{_microbench(row)}; no model was run with it yet, so nothing is known of a gain end to end."
    gpu = f"On {plain(cells[0].device.name)}"
    if row.e2e.symbol is Tracker.POSITIVE:
        cell, request = winning(row)
        instead = f"{gpu}, {code(cell.leader or '')} in place of {BASELINE} for {plain(row.title)}"
        made = f"makes a request of {plain(cell.title)} ({plain(request.what)}) {saved(request.figures.gain_pct)}"
        return f"{instead} {made}: worth wiring (the bar is 1 %)."
    best = _best(cells)
    tried = f"the best candidate, {_figure(*best)}" if best is not None else "no candidate could be timed"
    if row.e2e.symbol is Tracker.NEGATIVE:
        cell = best[0] if best is not None else cells[0]
        possible = cell.ceiling_pct if cell.closed_by_ceiling else None
        tried += f", and even leaving the op out only makes it {saved(possible)}" if possible is not None else ""
        return f"{gpu}, {BASELINE} stays for {plain(row.title)}: no candidate gains 1 % in a deciding model; {tried}."
    missing = [model for model in row.deciding_models if model not in {cell.workload for cell in cells}]
    more = f"; not run: {plain(', '.join(missing))}" if missing else ""
    verdict = f" ({best[1].verdict})" if best is not None else ""
    return f"{gpu}, {plain(row.title)} is open end to end: {tried}{verdict}{more}."


def winning(row: RowVerdict) -> tuple[CellVerdict, CompositionVerdict]:
    """The cell and the request that the row's ✅ end to end rests on."""
    won = row.e2e.won
    assert won is not None, "a row that is ✅ names its request"
    place = (won.workload, won.component, won.context, won.device_uuid)
    cell = next(cell for cell in row.cells if (cell.workload, cell.component, cell.context, cell.device.uuid) == place)
    return cell, next(request for request in cell.compositions if request.id == won.composition)


def saved(gain: Span) -> str:
    """`2.88 % [2.62, 3.14] faster`: percent of the baseline's time saved."""
    if gain.estimate >= 0:
        return f"{gain.estimate:.2f} % [{gain.lower:.2f}, {gain.upper:.2f}] faster"
    return f"{-gain.estimate:.2f} % [{-gain.upper:.2f}, {-gain.lower:.2f}] slower"


def leader_of(cell: CellVerdict) -> ModelArmVerdict | None:
    """The cell's leading candidate."""
    return next((arm for arm in cell.candidates if arm.id == cell.leader), None)


def _best(cells: Sequence[CellVerdict]) -> tuple[CellVerdict, ModelArmVerdict] | None:
    led = [(cell, leader) for cell in cells if (leader := leader_of(cell)) is not None]
    return max(led, key=lambda one: one[1].gain_pct.estimate if one[1].gain_pct else 0.0, default=None)


def _figure(cell: CellVerdict, leader: ModelArmVerdict) -> str:
    assert leader.gain_pct is not None, "a leader was timed"
    return f"{code(leader.id)}, makes {plain(cell.title)} ({plain(cell.what)}) {saved(leader.gain_pct)}"


def _microbench(row: RowVerdict) -> str:
    card = row.cards[0]
    gpu = f"On {plain(card.device.name)}"
    deciding = [step for step in card.steps if step.decides]
    measured = _deciding_cases(card, deciding)
    layouts = plain(text.listed(dict.fromkeys(one.case.layout for one in measured)))
    calls = f"the {plain(row.title)} calls" + (f" ({layouts})" if layouts else "")
    how = "taken alone" + (f" ({mode})" if (mode := _mode(measured)) else "")
    host = _host(measured)
    if card.tracker is Tracker.POSITIVE:
        faster = [step for step in deciding if step.outcome is Outcome.FASTER]
        extent = _extent(deciding, faster)
        return f"{gpu}, {how}, {_runs(faster, calls)} as fast as {BASELINE}{extent}{host}"
    if card.tracker is Tracker.NEGATIVE:
        led = [step for step in deciding if step.leader is not None]
        best = f": at best {_runs(led[:1], calls)} as fast" if led else ": none is eligible"
        return f"{gpu}, {how}, no candidate is faster than {BASELINE}{best}{host}"
    if card.tracker is Tracker.NO_CANDIDATE:
        return f"{gpu}, there is no candidate for {plain(row.title)} to compare with {BASELINE}"
    undecided = [plain(f"{step.model} ({step.step})") for step in deciding if not step.settled]
    return f"{gpu}, {plain(row.title)} is open: {decided(deciding)}; undecided: {text.some(undecided)}"


def decided(deciding: Sequence[StepVerdict]) -> str:
    """How far an open row is."""
    settled = sum(step.settled for step in deciding)
    return f"{settled} of {len(deciding)} deciding steps are decided, none of them FASTER"


def _deciding_cases(card: CardVerdict, deciding: Sequence[StepVerdict]) -> list[Comparison]:
    ids = {case_id for step in deciding for case_id in step.case_ids}
    return [one for one in card.comparisons if one.context is None and not one.case_changed and one.case.id in ids]


def _mode(measured: Sequence[Comparison]) -> str:
    """The execution mode of what decides: `cold L2, CUDA-graph replay`."""
    return plain(text.listed(dict.fromkeys(text.mode(one.method, one.cache) for one in measured)))


def _host(measured: Sequence[Comparison]) -> str:
    """Said where the host's time is known and no part of the time that was judged."""
    known = any(arm.host_us is not None for one in measured for arm in one.candidates)
    if not known or any(one.method is Method.WALL for one in measured):
        return ""
    return "; host time per call is in the table and counts where no CUDA graph is used"


def _runs(steps: Sequence[StepVerdict], calls: str) -> str:
    """`k` does the calls of a 1.50× and of b 1.20×; a range where there are many."""
    if len(steps) > _SPELLED_OUT:
        ratios = sorted(step.leader_ratio.estimate for step in steps if step.leader_ratio is not None)
        leaders = " or ".join(dict.fromkeys(code(step.leader or "") for step in steps))
        return f"{leaders} does {calls} {text.ratio(ratios[0])} to {text.ratio(ratios[-1])}"
    by_leader: dict[str, dict[str, list[str]]] = {}
    for step in steps:
        by_leader.setdefault(step.leader or "", {}).setdefault(step.model, []).append(
            text.ratio_span(step.leader_ratio)
        )
    return " and ".join(
        f"{code(leader)} does {calls} "
        + " and ".join(f"of {plain(model)} {' and '.join(figures)}" for model, figures in by_model.items())
        for leader, by_model in by_leader.items()
    )


def _extent(deciding: Sequence[StepVerdict], faster: Sequence[StepVerdict]) -> str:
    """Said where the sentence does not hold for all that decides."""
    if len(faster) == len(deciding):
        return ""
    unmeasured = sum(step.leader is None and bool(step.unmeasured) for step in deciding)
    missing = f", {unmeasured} not measured" if unmeasured else ""
    return f" ({len(faster)} of {len(deciding)} deciding steps{missing})"
