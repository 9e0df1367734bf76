"""`harness pr OP`: the text of a pull request for a row that is won, in vLLM-Omni's template, with its patch plan."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.report.conclusion import conclusion
from harness.report.matrix_notes import OMNI, gpu_cells
from harness.report.post import (
    device_of,
    e2e_sections,
    microbench_sections,
    platform_table,
    quality_sections,
    reproduce,
    require_evidence,
)
from harness.report.post_e2e import change
from harness.report.subissue import comment, require_symbol
from harness.report.text import Links, code, listed, plain, table
from harness.report.untested import not_tested
from harness.schema.e2e_verdict import CellVerdict, Verdict
from harness.schema.verdict import CardVerdict, RowVerdict
from harness.schema.vocabulary import ArmStatus, Contract, Kind, Tracker


@dataclass(frozen=True)
class CallSite:
    """Calls of the op that differ by an index alone."""

    owner: str
    """Class whose instances hold the module, by its full name."""
    module: str
    """Path of the module in the model, indices as N."""
    calls: int
    """Calls in one forward of the model."""


@dataclass(frozen=True)
class ModelSites:
    """Where one model calls the op."""

    title: str
    library: str
    """Whose model code it is, with its version."""
    sites: tuple[CallSite, ...]
    upstream: tuple[str, ...]
    """Objects of the model code that the wiring binds to, `module:qualified.name`."""


@dataclass(frozen=True)
class PatchPlan:
    """What is declared of the winning candidate and of the models it was wired into (`harness.patch_plan`)."""

    candidate: str
    kind: Kind
    provider: str
    contract: Contract
    context: str | None
    files: tuple[str, ...]
    """The candidate's sources below the project."""
    name: str
    signature: str
    mutates: tuple[str, ...]
    kernels: tuple[str, ...]
    """Patterns of the device kernels it launches."""
    prepared: bool
    """Whether weights are brought into another form once, before it is called."""
    fake: str
    """Source of its fake; empty where the harness makes one."""
    guards: tuple[str, ...]
    """Source of each of its guards; none where it takes every case."""
    models: tuple[ModelSites, ...]
    tests: tuple[str, ...]


def require_won(row: RowVerdict) -> None:
    """Raises UserError where the row is not ✅ end to end, or where its evidence is stale."""
    require_evidence(row)
    require_symbol(row, Tracker.POSITIVE, "a PR is for a row that is ✅ end to end")


def pr_markdown(row: RowVerdict, plan: PatchPlan, base_url: str = "") -> str:
    """Purpose, Test Plan, Test Result, and the lines of the template; raises UserError as `require_won`."""
    require_won(row)
    links = Links(base_url)
    title = f"[Kernel] {row.title}: {plan.name} on {device_of(row)}"
    parts = [
        f"<!-- title: {comment(title)} -->",
        f"## Purpose\n\n**{conclusion(row)}**",
        f"The row {plain(row.title)} of the kernel matrix is won end to end. This PR puts {code(plan.candidate)} in at "
        "the call sites below. `forward_native` stays the numerical authority, and platforms other than CUDA stay as "
        "they are.",
        *_plan(row, plan),
        f"## Test Plan\n\n{_test_plan(row, plan, links)}",
        "## Test Result",
        *e2e_sections(row, links),
        *microbench_sections(row, links),
        *quality_sections(row),
        f"### Platform\n\n{platform_table(row)}",
        f"### Not tested\n\n{not_tested(row)}",
        _versions(row),
    ]
    return "\n\n".join(parts) + "\n"


def _plan(row: RowVerdict, plan: PatchPlan) -> Iterator[str]:
    context = f", together with its neighbours ({plain(plan.context)})" if plan.context else ""
    own = all(model.library.startswith(OMNI) for model in plan.models)
    others = "" if own else "; vLLM-Omni's own classes take the same change"
    yield f"### Call sites\n\nIn the model code that was measured{context}{others}."
    for model in plan.models:
        rows = [(code(site.owner), code(site.module), str(site.calls)) for site in model.sites]
        yield f"{plain(model.title)} ({plain(model.library)}):"
        yield table(("class", "module", "calls a run"), rows, right=(2,))
        yield f"The wiring binds to {', '.join(map(code, model.upstream))}."
    yield from _left_alone(row, plan)
    yield f"### Kernel\n\n{_kernel(row, plan)}"
    yield f"### Registration\n\n{_registration(row, plan)}"
    yield f"### Guards\n\n{_guards(row, plan)}"


def _left_alone(row: RowVerdict, plan: PatchPlan) -> Iterator[str]:
    """Models in which the candidate does not win: their call sites stay as they are."""
    said = [
        f"{plain(cell.title)}, {plain(cell.what)} ({arm.verdict}, {change(arm.gain_pct)})"
        for cell in gpu_cells(row)
        for arm in cell.candidates
        if arm.id == plan.candidate and arm.verdict is not Verdict.WIN
    ]
    if said:
        yield f"Left as they are, since nothing is won there: {'; '.join(said)}."


def _kernel(row: RowVerdict, plan: PatchPlan) -> str:
    version = listed(row.cards[0].providers.get(plan.provider, ())) if row.cards else ""
    upstream = code(f"{plan.provider} {version}".strip())
    files = "\n".join(f"- {code(file)}" for file in plan.files)
    launched = f" It launches {', '.join(map(code, plan.kernels))}." if plan.kernels else ""
    weights = " Its weights are prepared once, at load time." if plan.prepared else ""
    if plan.kind is Kind.CUDA:
        what = (
            f"Nothing is ported: {upstream} has the kernel, and `forward_cuda` or the call site calls it directly as in"
        )
    elif plan.kind is Kind.REWRITE:
        what = "No kernel: another plain-PyTorch form, which `torch.compile` fuses, written as in"
    elif plan.provider == "inhouse":
        what = "Port the Triton kernel into the layers folder from"
    else:
        what = f"Port the Triton kernel of {upstream} into the layers folder, its licence with it, called as in"
    return f"{what}\n\n{files}\n\nContract: {plan.contract}.{launched}{weights}"


def _registration(row: RowVerdict, plan: PatchPlan) -> str:
    if plan.kind is Kind.REWRITE:
        return "None: it is compiled with what surrounds it."
    arms = [arm for card in row.cards[:1] for one in card.comparisons for arm in one.candidates]
    seen = dict.fromkeys(arm.registration for arm in arms if arm.id == plan.candidate and arm.registration)
    fake = plan.fake or "# strides and dtype that the kernel really writes"
    lines = (
        f"import torch\nfrom torch import Tensor\n\n\n"
        f'@torch.library.custom_op("vllm_omni::{plan.name}", mutates_args={plan.mutates!r}, '
        "tags=(torch.Tag.flexible_layout,))\n"
        f"def {plan.name}{plan.signature}: ...\n\n\n"
        f"@{plan.name}.register_fake\n{fake}"
    )
    return (
        f"Measured as {plain(listed(seen)) or 'custom op'}; `flexible_layout` keeps Inductor from copying inputs back "
        f"to eager's strides.\n\n```python\n{lines}\n```"
    )


def _guards(row: RowVerdict, plan: PatchPlan) -> str:
    """The guard, and every shape that it left to native in the evidence."""
    sources = "\n\n\n".join(plan.guards)
    said = [f"```python\n{sources}\n```\n"] if sources else ["- It takes every case."]
    said += [f"- {sentence}" for card in row.cards[:1] for sentence in _declined_alone(card, plan.candidate)]
    said += [f"- {sentence}" for cell in gpu_cells(row) for sentence in _declined_in(cell, plan.candidate)]
    declined = "What a guard declines runs `forward_native`, as does" if sources else "`forward_native` runs on"
    said.append(f"- {declined} every platform but CUDA.")
    return "\n".join(said)


def _declined_alone(card: CardVerdict, candidate: str) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for one in card.comparisons:
        for arm in one.candidates:
            if arm.id == candidate and arm.status is ArmStatus.INELIGIBLE:
                by_reason.setdefault(arm.reason, []).append(one.case.id)
    for reason, cases in by_reason.items():
        yield f"declines {', '.join(map(code, dict.fromkeys(cases)))}: {plain(reason)}."


def _declined_in(cell: CellVerdict, candidate: str) -> Iterator[str]:
    for arm in cell.candidates:
        if arm.id == candidate and arm.calls is not None:
            for shape, reason in arm.calls.declined.items():
                yield f"declines {code(shape)} in {plain(cell.title)}: {plain(reason)}."


def _test_plan(row: RowVerdict, plan: PatchPlan, links: Links) -> str:
    tests = "\n".join(f"- {code(file)}" for file in plan.tests) or "- none is declared for this op"
    exact = (
        "`torch.equal` to `forward_native` on every input that the guards admit"
        if plan.contract is Contract.BIT_EXACT
        else "bf16 within atol = rtol = 1e-2 of `forward_native`, or no farther from an fp64 oracle than native is"
    )
    return (
        f"Tests to port:\n\n{tests}\n\nThey assert: {exact}; odd strides, empty and large tensors; "
        f"`torch.library.opcheck`; one graph under `fullgraph=True`; native where a guard declines.\n\n"
        f"{reproduce(row, links)}"
    )


def _versions(row: RowVerdict) -> str:
    """The template's last lines: what was measured where it was, and what is for the branch's author to fill in."""
    omni = dict.fromkeys(cell.library for cell in gpu_cells(row) if cell.library.startswith(OMNI))
    vllm = row.cards[0].providers.get("vllm", ()) if row.cards else ()
    fill_in = "(fill in: these figures were measured outside it)"
    return f"**vLLM Version:** {plain(listed(vllm)) or fill_in}\n**vLLM-Omni Commit:** {plain(listed(omni)) or fill_in}"
