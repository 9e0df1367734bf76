"""What a post must say was not tested, from what was declared and what was measured."""

from collections.abc import Iterator, Sequence

from harness.report import text
from harness.report.matrix_notes import OMNI, gpu_cells
from harness.report.post_tables import alone, deciding
from harness.report.text import code, plain
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.verdict import CardVerdict, RowVerdict
from harness.schema.vocabulary import ArmStatus

_SHOWN = 6
"""Cases named before the rest is counted."""


def not_tested(row: RowVerdict) -> str:
    """A list in Markdown."""
    alone_said = _isolated(row.cards[0]) if row.cards else ["The calls by themselves: no µbench was run on this GPU."]
    said = [*_devices(row), *alone_said, *_models(row)]
    return "\n".join(f"- {sentence}" for sentence in said)


def _devices(row: RowVerdict) -> Iterator[str]:
    devices = [*(card.device for card in row.cards), *(cell.device for cell in gpu_cells(row))]
    names = dict.fromkeys(device.name for device in devices)
    yield f"GPUs other than {plain(' and '.join(names))}; nothing is pooled across cards."
    ranks = {one.case.ranks for card in row.cards for one in card.comparisons}
    if ranks == {1}:
        yield "Several GPUs at once: every call ran on one."


def _isolated(card: CardVerdict) -> Iterator[str]:
    for step in deciding(card):
        if step.unmeasured:
            yield plain(f"Shapes of {step.model} ({step.step}): {text.some(step.unmeasured, _SHOWN)}.")
        if step.left_out:
            left_out = text.some(step.left_out, _SHOWN)
            yield plain(f"Shapes of {step.model} known from memory alone, which count for nothing: {left_out}.")
    known = {one.case.id for one in alone(card) if not one.case_changed}
    others = dict.fromkeys(
        case_id
        for step in card.steps
        if not step.decides
        for case_id in (*step.unmeasured, *step.left_out)
        if case_id not in known
    )
    if others:
        yield plain(f"Shapes of the manifest that do not decide: {text.some(tuple(others), _SHOWN)}.")
    dtypes = dict.fromkeys(str(one.case.dtype) for one in alone(card))
    if len(dtypes) == 1:
        yield plain(f"Activations of another dtype than {next(iter(dtypes))}.")
    wanted = dict.fromkeys(context for one in alone(card) for context in one.case.contexts)
    measured = {one.context for one in card.comparisons if one.context is not None}
    if missing := [context for context in wanted if context not in measured]:
        yield plain(f"In context: {', '.join(missing)}.")
    if not wanted:
        yield "The op between its neighbours in the model: no context is declared for these shapes."
    yield from _candidates(card)


def _candidates(card: CardVerdict) -> Iterator[str]:
    """Candidates that were never timed, with the first reason."""
    arms = [arm for one in card.comparisons for arm in one.candidates]
    timed = {arm.id for arm in arms if arm.time_us is not None}
    absent: dict[str, list[str]] = {}
    for arm in arms:
        if arm.id not in timed and arm.status in (ArmStatus.NOT_INSTALLED, ArmStatus.INELIGIBLE):
            ids = absent.setdefault(arm.reason, [])
            ids += [arm.id] if arm.id not in ids else []
    for reason, ids in absent.items():
        yield f"{', '.join(map(code, ids))}: {plain(reason)}."


def _models(row: RowVerdict) -> Iterator[str]:
    cells = gpu_cells(row)
    missing = [model for model in row.deciding_models if model not in {cell.workload for cell in cells}]
    if not cells:
        yield plain(f"Any model end to end; the row waits for {', '.join(row.deciding_models)}.")
        yield "vLLM-Omni's own model code: the op was timed by itself, and no verdict here is about a model's code."
        return
    if missing:
        yield plain(f"Deciding models that were not run: {', '.join(missing)}.")
    yield from _model_code(cells)
    parts = dict.fromkeys(part for cell in cells for part in cell.unmeasured_parts)
    if parts:
        yield plain(
            f"Whole requests with {', '.join(parts)}, which has no time on this GPU: only the component is judged."
        )
    excluded = dict.fromkeys(request.excluded for cell in cells for request in cell.compositions)
    if excluded:
        yield plain(f"Of the requests: {', '.join(excluded)}, which can only lower the gain.")


def _model_code(cells: Sequence[CellVerdict]) -> Iterator[str]:
    libraries = dict.fromkeys(cell.library for cell in cells)
    if not any(library.startswith(OMNI) for library in libraries):
        yield plain(f"vLLM-Omni's own model code: the models are those of {', '.join(libraries)}.")
    if all(cell.checkpoint is None for cell in cells):
        yield (
            "Real weights: on random ones PSNR, SSIM and LPIPS say nothing, so the error against an fp32 copy of the "
            "model stands in their place."
        )
