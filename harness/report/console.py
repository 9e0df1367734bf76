"""The table that `harness bench` ends with, for a terminal of 80 columns or more."""

from collections.abc import Collection
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.report import text
from harness.report.matrix import device_name
from harness.report.page import lead
from harness.schema.verdict import ArmVerdict, CardVerdict, Comparison, RowVerdict, Verdicts, by_measurement
from harness.schema.vocabulary import ArmStatus, Outcome

_MARKS = {
    Outcome.FASTER: ("▲", "bold green"),
    Outcome.TIE: ("=", "default"),
    Outcome.SLOWER: ("▼", "red"),
    Outcome.INCONCLUSIVE: ("?", "yellow"),
}
_SHORT = {
    ArmStatus.INELIGIBLE: "n/a",
    ArmStatus.NOT_INSTALLED: "absent",
    ArmStatus.REHEARSED: "gate ok",
}
_NEVER_RAN = (ArmStatus.INELIGIBLE, ArmStatus.NOT_INSTALLED)
_INVALID = "invalid"
_MEANINGS = {
    "n/a": "not eligible",
    "absent": "not installed",
    "gate ok": "right in Triton's interpreter, not timed",
    _INVALID: "no comparison, reason below",
}
_COLUMN = 10
"""Characters that a candidate takes, the gap included."""


class _Cases:
    """Cases down, candidates across: as many side by side as the terminal is wide, the others below."""

    def __init__(self, card: CardVerdict, letters: dict[str, str]) -> None:
        self._groups = by_measurement(card.comparisons)
        self._letters = letters

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = list(self._letters)
        longest = max(len(_where(group)) for group in self._groups)
        across = max(2, (options.max_width - min(longest, 40) - _COLUMN) // _COLUMN)
        for start in range(0, max(1, len(names)), across):
            chunk = names[start : start + across]
            table = Table(box=None, pad_edge=False, header_style="bold")
            table.add_column("case", overflow="fold")
            table.add_column("µs", justify="right", no_wrap=True)
            for name in chunk:
                table.add_column(self._letters[name], justify="right", no_wrap=True)
            for group in self._groups:
                table.add_row(*_line(group, chunk))
            yield table


def outcome_table(verdicts: Verdicts, op: str, device_type: Literal["cuda", "cpu"]) -> RenderableType:
    """Outcomes of one op on the card (or CPU) of that type that was measured last."""
    row = next(row for row in verdicts.rows if row.op == op)
    cards = row.cards if device_type == "cuda" else row.rehearsals
    if not cards:
        return Text(f"{row.title}: nothing is stored for this device", style="yellow")
    return _card_table(row, max(cards, key=lambda card: max(one.started_at for one in card.comparisons)))


def _card_table(row: RowVerdict, card: CardVerdict) -> RenderableType:
    """Cases down, candidates across: ratio to torch.compile and outcome; reasons and the verdict below.

    Candidates that ran in no case have no column: a line says why.
    """
    ran = {arm.id for one in card.comparisons for arm in one.candidates if arm.status not in _NEVER_RAN}
    names = list(dict.fromkeys(arm.id for one in card.comparisons for arm in one.candidates if arm.id in ran))
    letters = {name: _letter(index) for index, name in enumerate(names)}
    title = f"{row.title} on {device_name(card, row)}: t(torch.compile) / t(candidate)"
    parts: list[RenderableType] = [Text(title, style="bold"), _Cases(card, letters)]
    parts.append(Text(f"{_key(card, ran)}µs is torch.compile's time", style="dim"))
    parts += [Text(f"{letters[name]}  {name}") for name in names]
    parts += [Text(note, style="dim") for note in _left_out(card, ran)]
    parts += [Text(note, style="yellow") for note in _reasons(card, letters)]
    rehearsal = "Rehearsal on a CPU: it decides nothing; verdicts come from GPUs."
    if card.device.type == "cpu":
        return Group(*parts, Text(rehearsal, style="bold"))
    parts.append(Text(f"{card.tracker} {lead(row, card)}", style="bold"))
    parts += [Padding(Text(note), (0, 0, 0, 3)) for note in card.notes]
    return Group(*parts)


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index - 25}"


def _key(card: CardVerdict, ran: Collection[str]) -> str:
    """The marks, and what the words mean that the table has."""
    marks = ((mark, outcome) for outcome, (mark, _) in _MARKS.items())
    arms = [arm for one in card.comparisons for arm in one.candidates if arm.id in ran]
    words = {_cell(arm).plain for arm in arms}
    said = [*marks, *((word, meaning) for word, meaning in _MEANINGS.items() if word in words)]
    return "  ".join(f"{mark} {meaning}" for mark, meaning in said) + "  "


def _where(group: list[Comparison]) -> str:
    """The case a measurement was made for, and how many others share it."""
    one = group[0]
    context = f" + {one.context}" if one.context else ""
    shared = f" (+{len(group) - 1})" if len(group) > 1 else ""
    return f"{one.case.id}{context}{shared}"


def _line(group: list[Comparison], names: list[str]) -> list[RenderableType]:
    base = group[0].baseline
    base_us = text.us(base.time_us.estimate) if base is not None and base.time_us is not None else text.NOTHING
    by_name = {arm.id: arm for arm in group[0].candidates}
    return [Text(_where(group)), Text(base_us), *(_cell(by_name.get(name)) for name in names)]


def _cell(arm: ArmVerdict | None) -> Text:
    if arm is None:
        return Text(text.NOTHING, style="dim")
    if arm.outcome in _MARKS and arm.ratio is not None:
        mark, style = _MARKS[arm.outcome]
        return Text(f"{arm.ratio.estimate:.3f} {mark}", style=style)
    if arm.outcome is Outcome.NOT_RUN:
        return Text(_SHORT[arm.status], style="dim")
    return Text(_INVALID, style="bold red")


def _reasons(card: CardVerdict, letters: dict[str, str]) -> list[str]:
    """Each reason once, with the cases it holds for."""
    cases: dict[tuple[str, str], list[str]] = {}
    for group in by_measurement(card.comparisons):
        one, where = group[0], _where(group)
        if one.invalid:
            cases.setdefault(("all", one.invalid), []).append(where)
        for arm in one.candidates:
            failed = arm.outcome is Outcome.INVALID and arm.reason != one.invalid
            if failed or (arm.status is ArmStatus.NOT_INSTALLED and arm.id in letters):
                cases.setdefault((letters[arm.id], arm.reason), []).append(where)
    return [f"{who}: {reason} ({text.some(where)})" for (who, reason), where in cases.items()]


def _left_out(card: CardVerdict, ran: Collection[str]) -> list[str]:
    """Candidates that ran nowhere, by the reason they have in every case."""
    reasons: dict[str, dict[str, None]] = {}
    for one in card.comparisons:
        for arm in one.candidates:
            if arm.id not in ran:
                reasons.setdefault(arm.id, {})[arm.reason] = None
    by_reason: dict[str, list[str]] = {}
    for name, found in reasons.items():
        why = next(iter(found)) if len(found) == 1 else "not eligible for any case, for several reasons"
        by_reason.setdefault(why, []).append(name)
    return [f"not in the table: {', '.join(names)}: {why}" for why, names in by_reason.items()]
