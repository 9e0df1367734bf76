"""`harness post OP`: the results post of one row on one kind of GPU, as reviewers of the RFC expect it."""

from collections.abc import Iterable, Iterator

from harness.errors import UserError
from harness.report import post_e2e, text
from harness.report.conclusion import conclusion
from harness.report.matrix import execution, software
from harness.report.matrix_notes import gpu_cells, model_code, stale_reasons
from harness.report.post_tables import (
    against_twin,
    candidate_table,
    case_table,
    deciding,
    leaders_in_context,
    quality_table,
    step_summary,
)
from harness.report.text import Links, link, listed, plain, table
from harness.report.untested import not_tested
from harness.schema.verdict import CardVerdict, RowVerdict

READING = (
    "Device times per call, from interleaved blocks in one process; speed-up is t(torch.compile) / t(candidate), "
    "brackets are 95 % intervals. The baseline is native under torch.compile (fullgraph, static shapes), never "
    "eager. A step's leading candidate is chosen on half of the blocks and its speed-up is from the other half."
)
READING_SHAPES = (
    "*Host µs*: wall time of a call with its launches, no CUDA graph. *Of copy speed*: an equally large, equally "
    "cold copy takes that share of the arm's time; shapes that stay in L2 can exceed it. *Same code again*: the "
    "baseline's own compiled code as one more arm; where it does not tie, every interval of that shape is widened "
    "by as much."
)
READING_TWIN = (
    "*twin*: the baseline is compiled twice and the candidate is judged against the faster of the two; in rows marked "
    "so that is the second compile, the twin, whose time, kernels, host time and share are shown, and the speed-up is "
    "to it. A speed-up is estimated from the ratios within blocks, so it can differ a little from the quotient."
)
E2E_READING = (
    "The candidate is wired into the model's own code; both sides are compiled, and the change is against the "
    "faster of the baselines with static and dynamic shapes. Intervals hold over fresh processes, every other one "
    "with cold compile caches. WIN: at least 1 % of the time saved; NO_WIN: less."
)
GATE_READING = (
    "An element passes within 1e-2 of native, or where it is no farther from the fp64 oracle than native is plus "
    "one ULP of the largest operand; where native is as often the farther one, than native at its worst plus one "
    "ULP; the RMS error against the oracle may be 1.5 × native's."
)


def post_markdown(row: RowVerdict, base_url: str = "") -> str:
    """The post. `base_url` stands for the project's root. Raises UserError where nothing was measured on a GPU."""
    require_evidence(row)
    links = Links(base_url)
    parts = [
        f"## {plain(row.title)} on {plain(device_of(row))}",
        f"**{conclusion(row)}**",
        *stale_line(row),
        platform_table(row),
        *microbench_sections(row, links),
        *e2e_sections(row, links),
        *quality_sections(row),
        f"### Not tested\n\n{not_tested(row)}",
        f"### Reproduce\n\n{reproduce(row, links)}",
    ]
    return "\n\n".join(parts) + "\n"


def require_evidence(row: RowVerdict) -> None:
    """Raises UserError where there is nothing to post."""
    if not row.cards and not gpu_cells(row):
        raise UserError(
            f"{row.op}: nothing was measured on a GPU yet, so there is nothing to post; run `make bench OP={row.op}`."
        )


def device_of(row: RowVerdict) -> str:
    """Name of the GPU that the row's post is about."""
    return row.cards[0].device.name if row.cards else gpu_cells(row)[0].device.name


def stale_line(row: RowVerdict) -> Iterator[str]:
    """What has changed since, or nothing."""
    reasons = stale(row)
    if reasons:
        yield f"**Stale:** {plain('; '.join(reasons))}. These figures are of the code as it was."


def stale(row: RowVerdict) -> list[str]:
    """Why the row's evidence no longer holds for what is here, one reason each."""
    of_cards = stale_reasons(row.cards[0]) if row.cards else []
    return list(dict.fromkeys([*of_cards, *(reason for cell in gpu_cells(row) for reason in cell.stale)]))


def platform_table(row: RowVerdict) -> str:
    """`| item | value |`: the card, every version and hash, and the exact commands."""
    rows = [*(_card_rows(row.op, row.cards[0]) if row.cards else []), *_other_cards(row), *_cell_rows(row)]
    return table(("item", "value"), [(name, value) for name, value in rows if value])


def _card_rows(op: str, card: CardVerdict) -> Iterator[tuple[str, str]]:
    device = card.device
    gpu = f"{device.name}, {device.sm_count} SM, {device.memory_gib} GiB, L2 {text.mib(device.l2_bytes)}"
    yield "GPU", plain(f"{gpu} (card {device.uuid})")
    yield "software", plain(f"{software(card)}, python {listed(card.python)}")
    yield "commit", plain(listed(map(_commit, card.git_shas)))
    yield "harness sources", plain(f"sha256 {listed(sorted(one[:12] for one in card.harness_sha256))}")
    yield "measured", plain(_range(one.started_at for one in card.comparisons))
    watched = [one.telemetry for one in card.comparisons if one.telemetry.available]
    if watched:
        throttled = ", ".join(sorted({reason for one in watched for reason in one.throttle_reasons}))
        clocks = [round(one.sm_clock_mhz_median) for one in watched]
        hottest = max(one.temperature_c_max for one in watched)
        yield (
            "clocks",
            plain(
                f"SM {min(clocks)} to {max(clocks)} MHz (medians), at most {hottest:.0f} °C, throttle reasons seen: "
                f"{throttled or 'none'}"
            ),
        )
    yield "µbench", plain(f"{execution(card)}; baseline native + torch.compile, fullgraph, static shapes")
    yield "command", text.code(bench_command(op, card))


def _other_cards(row: RowVerdict) -> Iterator[tuple[str, str]]:
    """What each further card said, one line each: the figures here are of the first card alone."""
    for card in row.cards[1:]:
        steps = [f"{step.model}: {step.outcome}" + (f", {step.reason}" * bool(step.reason)) for step in deciding(card)]
        old = [f"stale: {'; '.join(reasons)}"] if (reasons := stale_reasons(card)) else []
        said = "; ".join([*steps, *old, "not pooled"])
        yield "another card", plain(f"{card.device.name} (card {card.device.uuid}): {card.tracker} {said}")


def _cell_rows(row: RowVerdict) -> Iterator[tuple[str, str]]:
    cells = gpu_cells(row)
    if not cells:
        return
    devices = dict.fromkeys(f"{cell.device.name} (card {cell.device.uuid})" for cell in cells)
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(cell.versions.items())) for cell in cells
    )
    yield "end to end", plain(f"{model_code(cells)}; on {listed(devices)}")
    yield "its software", plain(listed(versions))
    yield "its commit", plain(listed(dict.fromkeys(_commit(cell.git_sha or "none") for cell in cells)))
    yield "its sources", plain(f"sha256 {listed(sorted({cell.e2e_sha256[:12] for cell in cells}))}")
    yield "its command", ", ".join(dict.fromkeys(text.code(command) for command in e2e_commands(row)))


def _commit(sha: str) -> str:
    """As recorded, with what a reader must know of it."""
    if sha == "none":
        return "no checkout; the hashes of sources tell the code"
    return f"{sha.removesuffix('+dirty')} with uncommitted changes" if sha.endswith("+dirty") else sha


def _range(values: Iterable[str]) -> str:
    found = sorted(set(values))
    return f"{found[0]} to {found[-1]}" if len(found) > 1 else "".join(found)


def bench_command(op: str, card: CardVerdict) -> str:
    """The command that made the card's measurements, as far as its settings tell."""
    seconds = card.settings.get("seconds_per_arm", ())
    options = f" --seconds {seconds[0]}" if len(seconds) == 1 else ""
    checks = " --cross-checks" if True in card.settings.get("cross_checks", ()) else ""
    return f"python -m harness bench {op}{options}{checks}"


def e2e_commands(row: RowVerdict) -> list[str]:
    """The commands that made the row's cells, as far as their settings tell."""
    commands = []
    for cell in gpu_cells(row):
        budget, slowdown = cell.settings.get("budget_s"), cell.settings.get("slowdown_pct")
        options = f" --budget {budget:g}" if isinstance(budget, int | float) else ""
        options += f" --slowdown {slowdown:g}" if isinstance(slowdown, int | float) and slowdown else ""
        weights = " --checkpoint FOLDER" if cell.checkpoint is not None else ""
        commands.append(f"python -m harness e2e {row.op} --model {cell.workload}/{cell.component}{options}{weights}")
    return commands


def microbench_sections(row: RowVerdict, links: Links) -> Iterator[str]:
    """µbench: by step, by case, all candidates, in context."""
    if not row.cards:
        return
    card = row.cards[0]
    yield f"### µbench\n\n{READING}"
    yield step_summary(card)
    if cases := case_table(card, links, of_deciding=True):
        page = link("their sources", links.report(f"{row.op}.md"))
        yield f"By shape ({page}). {READING_SHAPES}"
        yield cases
        if against_twin(card):
            yield READING_TWIN
    if candidates := candidate_table(card):
        yield _folded("All candidates, weighted by calls", candidates)
    if others := case_table(card, links, of_deciding=False):
        yield _folded("Shapes that do not decide the row", others)
    context = leaders_in_context(card)
    yield "### In context\n\n" + (
        f"The op compiled together with its neighbours: a custom op keeps Inductor from fusing across it.\n\n{context}"
        if context
        else "Not measured."
    )


def e2e_sections(row: RowVerdict, links: Links) -> Iterator[str]:
    """End to end, or that nothing ran."""
    cells = gpu_cells(row)
    if not cells:
        missing = plain(f"{', '.join(row.deciding_models)}{_needs(row)}")
        yield f"### End to end\n\nNot run: {missing}. A faster kernel alone is no win."
        return
    yield f"### End to end\n\n{E2E_READING}"
    yield from post_e2e.sections(cells, links)


def _needs(row: RowVerdict) -> str:
    cases = [one.case for card in row.cards for one in card.comparisons]
    ranks = max((case.ranks for case in cases if case.model in row.deciding_models), default=1)
    return f" (needs {ranks} devices of one host; make e2e OP={row.op})" if ranks > 1 else ""


def quality_sections(row: RowVerdict) -> Iterator[str]:
    """What the gate and the models say of the numbers."""
    tables = [quality_table(row.cards[0]) if row.cards else "", post_e2e.quality_table(gpu_cells(row))]
    if any(tables):
        yield "### Numbers\n\n" + "\n\n".join(filter(None, tables))
        yield GATE_READING


def reproduce(row: RowVerdict, links: Links) -> str:
    """Commands, and where the raw samples lie."""
    commands = [bench_command(row.op, row.cards[0])] if row.cards else []
    commands += dict.fromkeys(e2e_commands(row))
    lines = "\n".join([*commands, "make verify  # recomputes every verdict from results/, no GPU needed"])
    files = [one.evidence.file for card in row.cards[:1] for one in card.comparisons]
    files += [one.file for cell in gpu_cells(row) for one in cell.evidence]
    raw = ", ".join(link(plain(file), links.results(file)) for file in dict.fromkeys(files))
    return f"```\n{lines}\n```\n\nRaw samples: {raw}; tables of everything measured: {_pages(row, links)}."


def _pages(row: RowVerdict, links: Links) -> str:
    pages = [f"{row.op}.md"] * bool(row.cards) + ["e2e.md"] * bool(gpu_cells(row))
    return ", ".join(link(page, links.report(page)) for page in pages)


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"
