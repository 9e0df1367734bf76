"""Whether a matrix that people edit by hand still says what the evidence says: the symbols of every row."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.errors import UserError
from harness.report.matrix import e2e_extent, microbench_extent
from harness.schema.verdict import Cell, RowVerdict, Verdicts
from harness.schema.vocabulary import Tracker

_GITHUB = MarkdownIt("commonmark").enable("table")
_SHORTCODES = {
    ":raising_hand:": Tracker.UNCLAIMED,
    ":hourglass_flowing_sand:": Tracker.IN_PROGRESS,
    ":white_check_mark:": Tracker.POSITIVE,
    ":x:": Tracker.NEGATIVE,
}
"""How an issue may spell the symbols."""
_TRACKERS = {"µbench": "microbench", "e2e": "e2e", "pr": "pr"}
"""Columns of the matrix, folded as `_folded` does, to fields of a row."""
_RESTS_ON_EVIDENCE = (Tracker.POSITIVE, Tracker.NEGATIVE, Tracker.NO_CANDIDATE)


@dataclass(frozen=True)
class _Line:
    """One row of a table."""

    number: int
    """In the file, from 1."""
    cells: tuple[str, ...]
    """As shown, without markup."""


def contradictions(markdown: str, name: str, verdicts: Verdicts) -> list[str]:
    """What the matrix in `markdown` says and the evidence does not, one sentence each; `name` is the file's.

    Every table with a column `Op` and one of µbench, E2E and PR counts, whatever else stands in the file; rows may be
    missing. A row is found by its title or op id. Raises UserError where there is no such table.
    """
    tables = list(_matrices(_GITHUB.parse(markdown)))
    if not tables:
        raise UserError(f"{name}: there is no table with the columns Op and µbench, E2E or PR; paste the matrix whole.")
    by_name = {_folded(called): row for row in verdicts.rows for called in (row.title, row.op)}
    problems: list[str] = []
    seen: dict[str, int] = {}
    for columns, lines in tables:
        for line in lines:
            called = line.cells[columns["op"]]
            row = by_name.get(_folded(called))
            place = f"{name}:{line.number}"
            if row is None:
                known = ", ".join(row.title for row in verdicts.rows)
                problems.append(f"{place}: there is no row {called!r}; the rows are {known}.")
            elif row.op in seen:
                problems.append(f"{place}: {row.title} stands here again (first on line {seen[row.op]}); keep one.")
            else:
                seen[row.op] = line.number
                problems += [f"{place}: {problem}" for problem in _row_problems(row, columns, line)]
    return problems


def _matrices(tokens: list[Token]) -> Iterator[tuple[Mapping[str, int], list[_Line]]]:
    """Columns by name and lines of every table that is a matrix."""
    for head, *lines in _tables(tokens):
        columns = {_folded(cell): index for index, cell in enumerate(head.cells)}
        if "op" in columns and any(tracker in columns for tracker in _TRACKERS):
            yield columns, lines


def _tables(tokens: list[Token]) -> Iterator[list[_Line]]:
    lines: list[_Line] = []
    cells: list[str] = []
    for token in tokens:
        if token.type == "table_open":
            lines = []
        elif token.type == "tr_open":
            cells, start = [], token.map[0] + 1 if token.map else 0
        elif token.type == "inline":
            cells.append(_shown(token))
        elif token.type == "tr_close":
            lines.append(_Line(start, tuple(cells)))
        elif token.type == "table_close":
            yield lines


def _shown(token: Token) -> str:
    """The text a reader sees."""
    return "".join(child.content for child in token.children or [] if child.type in ("text", "code_inline"))


def _folded(text: str) -> str:
    """A name as it is compared: footnote marks, variants of µ, case and spaces do not count."""
    bare = re.sub(r"\(\d+\)", "", text.casefold()).replace("\u03bc", "µ")
    return re.sub(r"[\s*_`]+", "", bare)


def _row_problems(row: RowVerdict, columns: Mapping[str, int], line: _Line) -> Iterator[str]:
    for tracker, field in _TRACKERS.items():
        if tracker in columns:
            heading = {"e2e": "E2E", "pr": "PR"}.get(tracker, tracker)
            cell: Cell = getattr(row, field)
            written = line.cells[columns[tracker]]
            problem = _cell_problem(written, cell, _ground(row, field)) or _extent_problem(written, _extent(row, field))
            if problem:
                yield f"{row.title}, {heading}: {problem}"


def _extent(row: RowVerdict, field: str) -> str:
    return {"microbench": microbench_extent, "e2e": e2e_extent}.get(field, lambda _: "")(row)


def _extent_problem(written: str, extent: str) -> str:
    """A symbol may be right and what it is said to rest on wrong; it need not be said."""
    found = re.search(r"\d+ of \d+ (steps|models)", written)
    if found is None or found[0] == extent:
        return ""
    return f"says {found[0]} and the evidence has {extent or 'none'}."


def _cell_problem(written: str, cell: Cell, ground: str) -> str:
    found = _symbols(written)
    if len(found) != 1:
        what = f"holds {' and '.join(found)}" if found else "has no symbol"
        return f"{what}; write {_printed(cell)}, since {ground}."
    (symbol,) = found
    if symbol is cell.symbol:
        if cell.stale and "stale" not in written.casefold():
            return f"does not say that its evidence is stale; write {_printed(cell)}, since {_why_stale(cell)}."
        return ""
    if cell.symbol is Tracker.UNCLAIMED and symbol not in _RESTS_ON_EVIDENCE:
        return ""  # a claim made in the issue, which nothing contradicts
    return f"says {symbol} and must say {_printed(cell)}, since {ground}."


def _symbols(written: str) -> list[Tracker]:
    """The symbols of a cell, in their order; a dash counts only where it stands alone."""
    for shortcode, symbol in _SHORTCODES.items():
        written = written.replace(shortcode, symbol)
    if written.strip() == Tracker.NO_CANDIDATE:
        return [Tracker.NO_CANDIDATE]
    symbols = "".join(symbol for symbol in Tracker if symbol is not Tracker.NO_CANDIDATE)
    return list(dict.fromkeys(Tracker(symbol) for symbol in re.findall(f"[{symbols}]", written)))


def _why_stale(cell: Cell) -> str:
    return "; ".join(note.removeprefix("stale: ") for note in cell.notes if note.startswith("stale: "))


def _printed(cell: Cell) -> str:
    return f"{cell.symbol} (stale)" if cell.stale else str(cell.symbol)


def _ground(row: RowVerdict, field: str) -> str:
    """What the evidence says of one cell, or that there is none."""
    cell: Cell = getattr(row, field)
    if field == "pr":
        said = f"its E2E is {row.e2e.symbol}"
    elif field == "microbench" and row.cards:
        said = f"the evidence on {row.cards[0].device.name} is: {cell.extent}"
    elif cell.notes:
        said = f"the evidence is: {cell.notes[0]}"
    else:
        said = "nothing was measured on a GPU" if field == "microbench" else "nothing was measured end to end"
    if cell.owner is not None:
        said += f", and reports/claims.yaml names {cell.owner}"
    return said
