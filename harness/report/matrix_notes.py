"""What stands below the matrix: one note for each row that has something to say, and one line of scope for each GPU."""

from collections.abc import Iterator, Sequence

from harness.report import text
from harness.report.text import code, listed, plain
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.verdict import CardVerdict, RowVerdict, StepVerdict
from harness.schema.vocabulary import Outcome
from harness.verdict.contexts import gains, losses
from harness.verdict.e2e_rows import counted

OMNI = "vllm-omni"
"""How the library of a cell begins that ran vLLM-Omni's own model code."""


def row_note(row: RowVerdict) -> str:
    """The row's note as Markdown on one line, or the empty string."""
    said = filter(None, [_microbench(row), _e2e(row), *map(plain, _remarks(row))])
    sentences = " ".join(f"{one.rstrip('.')}." for one in said)
    return f"**{plain(row.title)}.** {sentences}" if sentences else ""


def _remarks(row: RowVerdict) -> list[str]:
    return [cell.remark for cell in (row.microbench, row.e2e, row.pr) if cell.remark]


def _microbench(row: RowVerdict) -> str:
    if not row.cards:
        return ""
    card = row.cards[0]
    deciding = [step for step in card.steps if step.decides]
    within = (*losses(card.steps, card.comparisons), *gains(card.comparisons))
    parts = [*_led(deciding), *_not_led(deciding), *(one.said(code, plain) for one in within)]
    if unmeasured := _unmeasured(row.op, deciding):
        parts.append(unmeasured)
    parts += [
        plain(f"another {other.device.name} says {other.tracker}")
        for other in row.cards[1:]
        if other.tracker is not card.tracker and not stale_reasons(other)
    ]
    if reasons := stale_reasons(card):
        parts.append(plain(f"stale: {'; '.join(reasons)}"))
    said = "; ".join(parts) or "there is no candidate"
    return f"µbench on {plain(card.device.name)}: {said}"


def stale_reasons(card: CardVerdict) -> list[str]:
    """What has overtaken the card's isolated measurements."""
    return sorted({reason for one in card.comparisons if one.context is None for reason in one.stale})


def _led(steps: Sequence[StepVerdict]) -> Iterator[str]:
    """Each leader once, with its ratio on every step; outcomes other than FASTER are named."""
    by_leader: dict[str, dict[str, list[str]]] = {}
    for step in steps:
        if step.leader is not None:
            figures = text.ratio_span(step.leader_ratio)
            if step.outcome is not Outcome.FASTER:
                figures += f" {step.outcome}" + (f" ({plain(step.reason)})" if step.reason else "")
            by_leader.setdefault(step.leader, {}).setdefault(step.model, []).append(figures)
    for leader, by_model in by_leader.items():
        models = [f"{plain(model)} {' and '.join(figures)}" for model, figures in by_model.items()]
        yield f"{code(leader)} {', '.join(models)}"


def _not_led(steps: Sequence[StepVerdict]) -> Iterator[str]:
    for step in steps:
        if step.leader is None and not step.unmeasured:
            yield plain(f"{step.model} ({step.step}): {step.outcome}, {step.reason}")


def _unmeasured(op: str, steps: Sequence[StepVerdict]) -> str:
    """Models whose steps nobody measured, and the command that would."""
    missing: dict[str, int] = {}
    for step in steps:
        if step.leader is None and step.unmeasured:
            missing[step.model] = missing.get(step.model, 0) + 1
    if not missing:
        return ""
    of = {model: sum(step.model == model for step in steps) for model in missing}
    models = [
        plain(model) + (f" ({count} of {of[model]} steps)" if of[model] > 1 else "") for model, count in missing.items()
    ]
    return f"not measured: {', '.join(models)} ({code(f'make bench OP={op}')})"


def _e2e(row: RowVerdict) -> str:
    cells = gpu_cells(row)
    if not cells:
        return ""
    devices = listed(dict.fromkeys(cell.device.name for cell in cells))
    return plain(f"E2E on {devices}, {model_code(cells)}: {'; '.join(row.e2e.notes)}")


def gpu_cells(row: RowVerdict) -> list[CellVerdict]:
    """The row's end-to-end cells that count, as its verdict counts them."""
    return counted([cell for cell in row.cells if cell.device.type == "cuda"])


def model_code(cells: Sequence[CellVerdict]) -> str:
    """Whose model code ran, and on which weights: never one library's verdict for another's."""
    libraries = listed(dict.fromkeys(cell.library for cell in cells))
    weights = dict.fromkeys("random weights" if cell.checkpoint is None else "a real checkpoint" for cell in cells)
    return f"{libraries} model code, {listed(weights)}"


def scope(rows: Sequence[RowVerdict], execution: str) -> str:
    """One line for each kind of GPU that a verdict comes from, with all software its rows were measured with."""
    cards = [row.cards[0] for row in rows if row.cards]
    cells = [cell for row in rows for cell in gpu_cells(row)]
    devices = {device.key: device for device in [*(card.device for card in cards), *(cell.device for cell in cells)]}
    if not devices:
        return "Scope: nothing was measured on a GPU yet."
    lines = []
    for key, device in devices.items():
        here = [card for card in cards if card.device.key == key]
        whole = [cell for cell in cells if cell.device.key == key]
        parts = [
            f"{device.name} ({device.sm_count} SM, {device.memory_gib} GiB, L2 {text.mib(device.l2_bytes)})",
            ", ".join(_software(here, whole)),
        ]
        if here:
            parts.append(f"µbench {execution}, baseline native + torch.compile, static shapes; {_origin(here)}")
        if whole:
            beaten = " (dynamic left out where clearly beaten)" if any(one.dynamic_left_out for one in whole) else ""
            shapes = f"static and dynamic shapes{beaten}"
            parts.append(f"E2E {model_code(whole)}, baselines native + torch.compile, {shapes}")
        lines.append(f"Scope: {plain('; '.join(parts))}.")
    return "\n".join(lines)


def _origin(cards: Sequence[CardVerdict]) -> str:
    """Which cards, when, from which sources: rows may come from several of each."""
    uuids = {card.device.uuid for card in cards}
    days = sorted(one.started_at[:10] for card in cards for one in card.comparisons)
    harness = listed(sorted({sha[:12] for card in cards for sha in card.harness_sha256}))
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    cards_said = "1 card" if len(uuids) == 1 else f"{len(uuids)} cards (a row is of one)"
    return f"{cards_said}, measured {when} by harness sources {harness}"


def _software(cards: Sequence[CardVerdict], cells: Sequence[CellVerdict]) -> Iterator[str]:
    """Every version seen, the driver first; more than one of a package is worth seeing."""
    versions: dict[str, dict[str, None]] = {"driver": {}, "CUDA": {}, "torch": {}, "triton": {}}
    for card in cards:
        found = {"driver": card.drivers, "CUDA": card.cuda, **_named(card)}
        for name, seen in found.items():
            versions.setdefault(name, {}).update(dict.fromkeys(seen))
    for cell in cells:
        for name in ("driver", "torch", "triton"):
            if name in cell.versions:
                versions[name][cell.versions[name]] = None
    return (f"{name} {listed(sorted(seen))}" for name, seen in versions.items() if seen)


def _named(card: CardVerdict) -> dict[str, tuple[str, ...]]:
    base: dict[str, tuple[str, ...]] = {
        name: card.packages[name] for name in ("torch", "triton") if name in card.packages
    }
    return {**base, **card.providers}
