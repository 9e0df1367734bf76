"""`reports/<op>.md`: everything measured about one op, for a reviewer who wants to disbelieve it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from harness.report import text
from harness.report.conclusion import decided
from harness.report.matrix import device_name, execution, software
from harness.report.pictures import Picture, shown
from harness.report.tables import (
    case_tables,
    clock_summary,
    clock_table,
    context_table,
    gate_notes,
    overview_table,
    phase_table,
    step_table,
)
from harness.schema.verdict import (
    CLOCKS_AGREE_SHARE,
    CLOCKS_AGREE_US,
    CLOCKS_GAP_US,
    CardVerdict,
    Comparison,
    RowVerdict,
    StepVerdict,
)
from harness.schema.vocabulary import Outcome, Role, Tracker

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=StrictUndefined,
    autoescape=False,  # Markdown; every value goes through text.plain or text.code
    keep_trailing_newline=True,
)
_TEMPLATES.filters["plain"] = text.plain


@dataclass(frozen=True)
class CaseView:
    """One case, folded away until a reader opens it."""

    title: str
    facts: str
    tables: tuple[str, ...]


@dataclass(frozen=True)
class StepView:
    """One step of one model."""

    title: str
    verdict: str
    table: str
    remarks: str


@dataclass(frozen=True)
class Section:
    """One card."""

    device: str
    lead: str
    notes: tuple[str, ...]
    stale: str
    platform: str
    steps: tuple[StepView, ...]
    speedup: str
    roofline: str
    run: str
    e2e: str
    history: str
    overview: str
    cases: tuple[CaseView, ...]
    contexts: str
    noticed: str
    clock_summary: str
    clocks: str
    phases: str


def render(row: RowVerdict) -> str:
    """The page of an op that was measured on some GPU."""
    section, *others = row.cards
    seconds = sorted({str(value) for card in row.cards for value in card.settings.get("seconds_per_arm", ())})
    arguments = f" ARGS='--seconds {seconds[0]}'" if len(seconds) == 1 else ""
    return _TEMPLATES.get_template("page.md.j2").render(
        row=row,
        section=_section(row, section),
        others=[_other(row, card) for card in others],
        outcomes=text.OUTCOMES,
        arguments=arguments,
        clocks=(100 * CLOCKS_AGREE_SHARE, CLOCKS_AGREE_US, CLOCKS_GAP_US),
    )


def _other(row: RowVerdict, card: CardVerdict) -> str:
    """A card that does not decide the row, in a line; its figures are in `verdicts.json`."""
    stale = " Stale: " + "; ".join(_stale(card)) + "." if _stale(card) else ""
    file = card.comparisons[0].evidence.file
    return f"{text.plain(lead(row, card) + stale)} ({text.link('evidence', f'../results/{file}')})"


def _stale(card: CardVerdict) -> list[str]:
    return sorted({reason for one in card.comparisons for reason in one.stale})


def lead(row: RowVerdict, card: CardVerdict) -> str:
    """What the card's samples say, in one sentence; the card's notes say it step by step."""
    where = f"On {device_name(card, row)}"
    deciding = [step for step in card.steps if step.decides]
    if card.tracker is Tracker.POSITIVE:
        ratios = [r.estimate for step in deciding if step.outcome is Outcome.FASTER and (r := step.leader_ratio)]
        low, high = text.ratio(min(ratios)), text.ratio(max(ratios))
        reached = low if low == high else f"{low} to {high}"
        of = f"{len(ratios)} of {len(deciding)} deciding steps"
        return f"{where}, some candidate does {of} {reached} as fast as native + torch.compile."
    if card.tracker is Tracker.NEGATIVE:
        return f"{where}, no candidate is faster than native + torch.compile on any deciding step."
    if card.tracker is Tracker.NO_CANDIDATE:
        return f"{where}, there is no candidate to compare with native + torch.compile."
    return f"{where}, the row is open: {decided(deciding)}."


def _section(row: RowVerdict, card: CardVerdict) -> Section:
    alone = [one for one in card.comparisons if one.context is None]
    return Section(
        device=device_name(card, row),
        lead=lead(row, card),
        notes=card.notes,
        stale="; ".join(_stale(card)),
        platform=_platform(card),
        steps=tuple(_step(step) for step in card.steps),
        speedup=shown(row, Picture.SPEEDUP),
        roofline=shown(row, Picture.ROOFLINE),
        run=shown(row, Picture.RUN),
        e2e=shown(row, Picture.E2E),
        history=shown(row, Picture.HISTORY),
        overview=overview_table(alone),
        cases=tuple(_case(one) for one in card.comparisons),
        contexts=context_table(card.comparisons),
        noticed=gate_notes(card.comparisons),
        clock_summary=clock_summary(card),
        clocks=clock_table(card),
        phases=phase_table(card.comparisons),
    )


def _platform(card: CardVerdict) -> str:
    device = card.device
    alone = [one for one in card.comparisons if one.context is None]
    watched = [one.telemetry for one in card.comparisons if one.telemetry.available]
    rows = [
        ("device", f"{device.name}, {device.sm_count} SM, {device.memory_gib} GiB, L2 {text.mib(device.l2_bytes)}"),
        ("card", device.uuid),
        ("software", software(card)),
        ("other packages", _packages(card)),
        ("python", text.listed(card.python)),
        ("commit", text.listed(card.git_shas)),
        ("execution", execution(card)),
        ("harness sources", text.listed(sorted(one[:12] for one in card.harness_sha256))),
        ("baseline", f"native + torch.compile (fullgraph, static shapes); A/A: {_controls(card)}"),
        ("settings", "; ".join(f"{name} {text.listed(map(str, values))}" for name, values in card.settings.items())),
        ("compile caches", text.listed(sorted({one.compile_cache for one in card.comparisons}))),
        ("blocks", _range(one.blocks for one in alone)),
        ("measured", _range(one.started_at for one in card.comparisons)),
    ]
    if watched:
        rows += [
            ("SM clock, median", f"{_range(round(one.sm_clock_mhz_median) for one in watched)} MHz"),
            ("power, median", f"{_range(round(one.power_w_median) for one in watched)} W"),
            ("hottest", f"{max(one.temperature_c_max for one in watched):.0f} °C"),
            (
                "throttle reasons seen",
                ", ".join(sorted({r for one in watched for r in one.throttle_reasons})) or "none",
            ),
            ("blocks voided", str(sum(one.blocks_void for one in watched))),
        ]
    return text.table(("item", "value"), [(name, text.plain(value)) for name, value in rows if value])


def _controls(card: CardVerdict) -> str:
    """Which controls the evidence really holds."""
    roles = {arm.role for one in card.comparisons for arm in one.controls if arm.time_us is not None}
    if Role.CONTROL in roles:
        return "the same code once more, and a separately compiled twin"
    return "a separately compiled twin alone (measured before the same-code control existed)"


def _packages(card: CardVerdict) -> str:
    shown = {"torch", "triton", *card.providers}
    return ", ".join(f"{name} {text.listed(versions)}" for name, versions in card.packages.items() if name not in shown)


def _range(values: Iterable[int] | Iterable[str]) -> str:
    found = sorted(set(values))  # type: ignore[type-var]
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else "".join(map(str, found))


def _step(step: StepVerdict) -> StepView:
    decides = "" if step.decides else " (does not decide the row)"
    verdict = f"{step.outcome}, {step.reason}" if step.reason else str(step.outcome)
    if step.leader is not None:
        verdict += f"; leader {step.leader} {text.ratio_span(step.leader_ratio)} on the odd blocks"
    left_out = f"Left out, since their dims are from memory: {', '.join(step.left_out)}." if step.left_out else ""
    return StepView(
        title=f"{step.model}, {step.step}{decides}", verdict=f"{verdict}.", table=step_table(step), remarks=left_out
    )


def _case(one: Comparison) -> CaseView:
    where = f" in context {one.context}" if one.context else ""
    state = f" · {one.invalid}" if one.invalid else ""
    title = f"{one.case.id}{where}: {text.short_shape(one.case)}{state}"
    return CaseView(title=_html(title), facts=_facts(one), tables=tuple(case_tables(one)))


def _html(value: str) -> str:
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def _facts(one: Comparison) -> str:
    case = one.case
    parts: Sequence[str] = (
        text.plain(f"{text.shape(case)}; {', '.join(f'{name} {value}' for name, value in case.params.items())}"),
        text.plain(f"{case.model}, {case.calls} calls a step ({case.step}); dims {case.confidence}: {case.source}"),
        text.plain(
            f"{text.mode(one.method, one.cache)}; {one.blocks} blocks; {one.rotation} sets of inputs and outputs, "
            f"{text.mib(one.rotated_bytes)}"
        ),
        _ranks(one),
        _roofline(one),
        _aa(one),
        f"evidence {text.evidence_link(one.evidence)}"
        + (f"; other measurements of it that were passed over: {one.passed_over}" if one.passed_over else ""),
        *([f"measured for {text.code(one.measured_as)}, which has the same shape"] if _shared(one) else []),
        *(f"**stale**: {text.plain(reason)}" for reason in one.stale),
        *(["**the manifest's sizes have changed**: counts for nothing"] if one.case_changed else []),
    )
    return "\n".join(f"- {part}" for part in parts if part)


def _shared(one: Comparison) -> bool:
    return one.measured_as != one.case.id


def _ranks(one: Comparison) -> str:
    if (of := one.ranks) is None:
        return ""
    doubt = f", on clocks known to ±{text.us(of.uncertainty_us)} µs"
    return f"{of.ranks} ranks, {text.together(of, 'µs a call', text.us, text.code, doubt)}"


def _roofline(one: Comparison) -> str:
    if one.bytes_moved is None or one.copy_us is None:
        return ""
    rate = one.bytes_moved / one.copy_us / 1e6
    resident = "; L2-resident: the copy is no limit" if one.l2_resident else ""
    floor = f"; the op's stated floor {text.us(one.floor_us)} µs" if one.floor_us is not None else ""
    moved = text.mib(one.bytes_moved)
    return f"a copy that moves the same {moved}: {text.us(one.copy_us)} µs, {rate:.2f} TB/s{floor}{resident}"


def _aa(one: Comparison) -> str:
    timed = [arm for arm in one.controls if arm.effect_log_pct is not None]
    if not timed:
        return ""
    names = {Role.CONTROL: "same code", Role.TWIN: "twin"}
    said = "; ".join(
        f"{names[arm.role]} {text.log_span(arm.effect_log_pct)}, {arm.outcome}" for arm in timed if arm.effect_log_pct
    )
    allowed = f"; every interval here is widened by {one.allowance_log_pct:.2f} %" if one.allowance_log_pct else ""
    return f"A/A: {said}{allowed}" + (f"; {one.lottery}" if one.lottery else "")
