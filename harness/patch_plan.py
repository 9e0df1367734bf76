"""What a pull request has to do for a row that is won, read from declarations: the candidate's, the op's, the wiring's.

Imports the candidates, torch and the library whose model code was wired; the text made of it is `harness.report.pr`.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import catalog
from harness.errors import UserError
from harness.imported import PACKAGE, files_of
from harness.op import Candidate, Guard, always
from harness.report.conclusion import winning
from harness.report.matrix_notes import gpu_cells
from harness.report.pr import CallSite, ModelSites, PatchPlan
from harness.schema.e2e_verdict import CellVerdict, Verdict
from harness.schema.verdict import RowVerdict
from harness.schema.workload import Workload, load_workloads, merged
from harness.wiring import Wiring


def patch_plan(root: Path, row: RowVerdict, broken: Mapping[str, str]) -> PatchPlan:
    """The plan for the candidate that won the row, at the call sites of every model that it is faster in.

    `broken` is what must not be imported, from `harness.survey`. Raises UserError where the candidate or the wiring is
    no longer declared, or the model's library is not installed.
    """
    cell, _ = winning(row)
    entry = catalog.load(row.op, root, broken=broken)
    candidate = next((one for one in entry.candidates if one.id == cell.leader), None)
    if candidate is None:
        raise UserError(
            f"{row.op}: {cell.leader} won and is in candidates/{row.op}/ no more; a PR ports what is there to port."
        )
    file = Path(str(sys.modules[inspect.unwrap(candidate.run).__module__].__file__))
    return PatchPlan(
        candidate=candidate.id,
        kind=candidate.kind,
        provider=candidate.provider.id,
        contract=candidate.contract,
        context=candidate.context,
        files=tuple(_to_port(file, root, row.op)),
        name=candidate.name,
        signature=_signature(candidate),
        mutates=candidate.mutates,
        kernels=candidate.kernels,
        prepared=candidate.prepare is not None,
        fake=_source(candidate.fake or (entry.op.fake if candidate.context is None else None)),
        guards=tuple(_guards(candidate.guard)),
        models=tuple(_models(root, row, cell)),
        tests=tuple(_tests(root, row.op)),
    )


def _models(root: Path, row: RowVerdict, winner: CellVerdict) -> Iterator[ModelSites]:
    """The winner's model, then the others in which the same candidate wins its component, each once."""
    from harness.e2e.wirings import wiring_for

    workloads = load_workloads(root / "shapes" / "workloads")
    seen: set[tuple[str, str | None]] = set()
    for cell in (winner, *gpu_cells(row)):
        wins = any(arm.id == winner.leader and arm.verdict is Verdict.WIN for arm in cell.candidates)
        if (cell is winner or wins) and (cell.workload, cell.context) not in seen:
            seen.add((cell.workload, cell.context))
            workload = workloads[cell.workload]
            wiring = wiring_for(row.op, workload.family, cell.context)
            sites = tuple(_sites(workload, cell.component, wiring))
            yield ModelSites(cell.title, cell.library, sites, tuple(wiring.pinned))


def _signature(candidate: Candidate) -> str:
    """As `torch.library.custom_op` reads it."""
    signature = inspect.signature(inspect.unwrap(candidate.run), eval_str=True)
    return str(signature).replace("torch.Tensor", "Tensor")


def _source(function: Any) -> str:
    """Source text of a function, or where there is none to show, nothing."""
    if function is None:
        return ""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function))).rstrip()
    except (OSError, TypeError):
        return ""


def _guards(guard: Guard) -> Iterator[str]:
    """Source of a guard, or of those that it is put together from, with the values they were made with."""
    if guard is always:
        return
    bound = inspect.getclosurevars(inspect.unwrap(guard)).nonlocals
    inner = [one for value in bound.values() for one in (value if isinstance(value, tuple) else (value,))]
    parts = [one for one in inner if inspect.isfunction(one)]
    for part in parts:
        yield from _guards(part)
    if not parts:
        values = ", ".join(f"{name} = {value!r}" for name, value in bound.items())
        yield (f"# with {values}\n" if values else "") + _source(guard)


def _to_port(file: Path, root: Path, op: str) -> Iterator[str]:
    """The candidate's file and what it imports of its op's folder, below the project."""
    folder = (root / PACKAGE / op).resolve()
    for found in sorted(files_of(file.resolve(), (root.resolve(),))):
        if folder in found.parents and found.name != "__init__.py":
            yield found.relative_to(root.resolve()).as_posix()


def _sites(workload: Workload, component: str, wiring: Wiring) -> Iterator[CallSite]:
    """Call sites in the model as built, those that differ by an index alone together; no weights are made."""
    import torch

    from harness.e2e.models import family

    config = merged(workload.config, workload.component(component).config)
    with torch.device("meta"):
        model = family(workload.family).build(config)
    found: Counter[tuple[str, str]] = Counter()
    for site in wiring.sites(model):
        owner = type(model.get_submodule(site.module.rpartition(".")[0]))
        where = f"{owner.__module__}.{owner.__qualname__}"
        found[where, re.sub(r"\.\d+(?=\.|$)", ".N", site.module)] += site.calls
    for (owner_name, module), calls in found.items():
        yield CallSite(owner=owner_name, module=module, calls=calls)


def _tests(root: Path, op: str) -> Iterator[str]:
    """Tests of the op's candidates, by name; those of an op whose id begins with this one's are not among them."""
    longer = tuple(f"test_{other}" for other in catalog.op_ids(root) if other.startswith(f"{op}_"))
    for file in sorted((root / "tests" / PACKAGE).glob(f"test_{op}*.py")):
        if not file.stem.startswith(longer):
            yield file.relative_to(root).as_posix()
