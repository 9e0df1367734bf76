"""`reports/matrix.md`: the RFC's table, ready to be pasted into its issue."""

from harness.report.matrix_notes import gpu_cells, row_note, scope
from harness.report.text import LEGEND, Links, link, listed, mode, plain, spans, table
from harness.schema.e2e_verdict import Verdict
from harness.schema.verdict import CardVerdict, Cell, RowVerdict, Verdicts
from harness.schema.vocabulary import Outcome

HEADERS = ("Type", "Op", "Triton ref", "Existing CUDA ref", "µbench", "E2E", "PR")


def matrix_markdown(verdicts: Verdicts, base_url: str = "", device: str | None = None) -> str:
    """The matrix, of all evidence or of that on one kind of GPU (a key of `Verdicts.devices`).

    `base_url` stands for the project's root in links that leave the repository, e.g. in an issue.
    """
    links = Links(base_url)
    shown = verdicts if device is None else verdicts.on(device)
    rows, notes = [], []
    for row in shown.rows:
        if note := row_note(row):
            notes.append(note)
        mark = f"({len(notes)})" if note else ""
        rows.append(
            (
                plain(row.type),
                plain(row.title),
                spans(row.triton_ref),
                spans(row.cuda_ref),
                _said(row.microbench, _microbench(row, links), mark if row.cards or row.microbench.remark else ""),
                _said(row.e2e, _e2e(row, links), mark if gpu_cells(row) or row.e2e.remark else ""),
                _said(row.pr, "", mark if row.pr.remark else ""),
            )
        )
    parts = [f"# Kernel matrix{_on(shown, device)}", table(HEADERS, rows)]
    if notes:
        parts.append("\n".join(f"{number}. {note}" for number, note in enumerate(notes, start=1)))
    parts += [scope(shown.rows, execution(*(row.cards[0] for row in shown.rows if row.cards))), _legend()]
    if verdicts.set_aside and device is None:
        listing = "\n".join(f"- {plain(sentence)}" for sentence in verdicts.set_aside)
        parts.append(f"Evidence that no manifest asks for any more, and that counts for nothing:\n\n{listing}")
    return "\n\n".join(parts) + "\n"


def file_name(device: str) -> str:
    """The matrix of one kind of GPU below `reports/`."""
    return f"matrix-{device}.md"


def _on(shown: Verdicts, device: str | None) -> str:
    if device is None:
        return ""
    names = [card.device.name for row in shown.rows for card in row.cards]
    names += [cell.device.name for row in shown.rows for cell in row.cells]
    return f": {plain(names[0])} ({plain(device)})"


def _said(cell: Cell, proof: str, mark: str) -> str:
    return " ".join(filter(None, [_symbol(cell), proof, _who(cell), mark]))


def _microbench(row: RowVerdict, links: Links) -> str:
    if not row.cards:
        return ""
    extent = link(microbench_extent(row), links.report(f"{row.op}.md"))
    return f"{extent} · {link('evidence', links.results(row.cards[0].comparisons[0].evidence.file))}"


def microbench_extent(row: RowVerdict) -> str:
    """On how many of the deciding steps some candidate is faster; empty where nothing was measured."""
    deciding = [step for card in row.cards[:1] for step in card.steps if step.decides]
    faster = sum(step.outcome is Outcome.FASTER for step in deciding)
    return f"{faster} of {len(deciding)} steps" if row.cards else ""


def _e2e(row: RowVerdict, links: Links) -> str:
    cells = gpu_cells(row)
    if not cells:
        return ""
    extent = link(e2e_extent(row), links.report("e2e.md"))
    return f"{extent} · {link('evidence', links.results(cells[0].evidence[0].file))}"


def e2e_extent(row: RowVerdict) -> str:
    """How many of the deciding models have a verdict; empty where none was tried."""
    cells = gpu_cells(row)
    counts = (cell for cell in cells if cell.verdict is not Verdict.INVALID)
    tested = len({cell.workload for cell in counts if cell.workload in row.deciding_models})
    return f"{tested} of {len(row.deciding_models)} models" if cells else ""


def _symbol(cell: Cell) -> str:
    return f"{cell.symbol} (stale)" if cell.stale else str(cell.symbol)


def _who(cell: Cell) -> str:
    """The owner, linked to what the owner shows."""
    if cell.owner is None:
        return ""
    return link(cell.owner, cell.link) if cell.link else cell.owner


def device_name(card: CardVerdict, row: RowVerdict) -> str:
    """The device's name, with the card's UUID where the row has several cards of that key."""
    same = sum(other.device.key == card.device.key for other in (*row.cards, *row.rehearsals))
    return f"{card.device.name} (card {card.device.uuid})" if same > 1 else card.device.name


def software(card: CardVerdict) -> str:
    """Driver, CUDA, torch, triton and the packages that kernels came from."""
    names = [f"driver {listed(card.drivers)}", f"CUDA {listed(card.cuda)}"] if card.device.type == "cuda" else []
    names += [f"{name} {listed(card.packages[name])}" for name in ("torch", "triton") if name in card.packages]
    names += [f"{provider} {listed(versions)}" for provider, versions in card.providers.items()]
    return ", ".join(names)


def execution(*cards: CardVerdict) -> str:
    """How the isolated cases were timed."""
    alone = (one for card in cards for one in card.comparisons if one.context is None)
    return listed(dict.fromkeys(mode(one.method, one.cache) for one in alone))


def _legend() -> str:
    symbols = " · ".join(f"{symbol} {meaning}" for symbol, meaning in LEGEND)
    return (
        f"Legend: {symbols}. *n of m steps*: a candidate is FASTER on n of the m steps of deciding models; *n of m "
        "models*: so many of the deciding models have a verdict end to end. Ratios are t(torch.compile) / "
        "t(candidate), the faster of two compiles where they differ, weighted by calls, with 95 % intervals within one "
        "process: another start, or another compile, may differ by more. A leader is chosen on half of the blocks and "
        "its ratio is from the other half. µbench only ranks: a row is won by ≥ 1 % end to end. PR follows E2E: its "
        "link is the PR of a ✅, the sub-issue of a ❌."
    )
