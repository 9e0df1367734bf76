"""`reports/matrix.md`: the RFC's table, ready to be pasted into its issue."""

from collections.abc import Sequence

from harness.report.text import LEGEND, evidence_target, link, listed, mib, mode, plain, table
from harness.schema.verdict import CardVerdict, Cell, RowVerdict, Verdicts
from harness.schema.vocabulary import Tracker

HEADERS = ("Type", "Op", "Triton ref", "Existing CUDA ref", "µbench", "E2E", "PR")
DECIDED = (Tracker.POSITIVE, Tracker.NEGATIVE)


class Notes:
    """Numbers notes in the order of their first use; equal notes share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, notes: Sequence[str]) -> str:
        """`(1) (2)` for notes that are Markdown already."""
        numbers = [self._numbers.setdefault(note, len(self._numbers) + 1) for note in notes]
        return " ".join(f"({number})" for number in numbers)

    def __str__(self) -> str:
        return "\n".join(f"{number}. {note}" for note, number in self._numbers.items())


def matrix_markdown(verdicts: Verdicts, link_base: str = "") -> str:
    """The matrix. `link_base` goes before links: empty in the repository, the URL of `reports/` for an issue."""
    notes = Notes()
    rows = [
        (
            row.type,
            link(plain(row.title), f"{link_base}{row.op}.md") if row.cards else plain(row.title),
            row.triton_ref.replace("|", "\\|"),
            row.cuda_ref.replace("|", "\\|"),
            _microbench(row, notes, link_base),
            _e2e(row, notes, link_base),
            _cell(row.pr, notes),
        )
        for row in verdicts.rows
    ]
    parts = ["# Kernel matrix", table(HEADERS, rows)]
    if str(notes):
        parts.append(f"Notes\n\n{notes}")
    parts += [_scope(verdicts.rows), _legend()]
    if verdicts.set_aside:
        listing = "\n".join(f"- {plain(sentence)}" for sentence in verdicts.set_aside)
        parts.append(f"Evidence that no manifest asks for any more, and that counts for nothing:\n\n{listing}")
    return "\n\n".join(parts) + "\n"


def _microbench(row: RowVerdict, notes: Notes, base: str) -> str:
    cell = row.microbench
    if cell.symbol not in DECIDED or not row.cards:
        return _cell(cell, notes)
    card = row.cards[0]
    evidence = evidence_target(card.comparisons[0].evidence, base).split("#")[0]
    proof = f"{link('report', f'{base}{row.op}.md')} · {link('evidence', evidence)}"
    scoped = (f"On {device_name(card, row)}: {plain(cell.notes[0])}", *map(plain, cell.notes[1:]))
    return " ".join(filter(None, [_symbol(cell), cell.extent, proof, _who(cell), notes.mark(scoped)]))


def _e2e(row: RowVerdict, notes: Notes, base: str) -> str:
    cell = row.e2e
    if not any(one.device.type == "cuda" for one in row.cells):
        return _cell(cell, notes)
    proof = link("report", f"{base}e2e.md")
    said = [plain(note) for note in cell.notes]
    return " ".join(filter(None, [_symbol(cell), proof, _who(cell), notes.mark(said)]))


def _cell(cell: Cell, notes: Notes) -> str:
    return " ".join(filter(None, [_symbol(cell), _who(cell), notes.mark([plain(note) for note in cell.notes])]))


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


def execution(card: CardVerdict) -> str:
    """How the isolated cases were timed."""
    modes = dict.fromkeys(mode(one.method, one.cache) for one in card.comparisons if one.context is None)
    return listed(modes)


def _scope(rows: Sequence[RowVerdict]) -> str:
    deciding = {(row.cards[0].device.uuid, software(row.cards[0])): row for row in rows if row.cards}
    lines = []
    for row in deciding.values():
        card = row.cards[0]
        device = card.device
        gpu = f"{device.name} ({device.sm_count} SM, {device.memory_gib} GiB, L2 {mib(device.l2_bytes)})"
        lines.append(
            f"{gpu}; {software(card)}; µbench {execution(card)}; baseline native + torch.compile, static shapes"
        )
    if not lines:
        return "Scope: nothing was measured on a GPU yet."
    return "\n".join(f"Scope: {plain(line)}." for line in dict.fromkeys(lines))


def _legend() -> str:
    symbols = "\n".join(f"- {symbol} {meaning}" for symbol, meaning in LEGEND)
    return (
        f"Legend\n\n{symbols}\n\nRatios are t(torch.compile) / t(candidate) with a 95 % interval: 1.35× takes 1/1.35 "
        "of the time. The leader of a model is chosen on half of the blocks; the ratio printed is from the other half. "
        "µbench only ranks: a row's win is ≥ 1 % end to end."
    )
