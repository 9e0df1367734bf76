"""What `harness list` prints and `harness check` finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from harness import catalog
from harness.errors import UserError
from harness.schema.claims import check_rows, load_claims
from harness.schema.manifest import manifest_files, readable_manifests
from harness.survey import Survey, survey


def op_tables(found: Survey) -> Iterator[Table | str]:
    """One table for each op, for a terminal of 80 columns or more, and below it what its candidates lack here."""
    for one in (one for one in found.ops if not one.error):
        table = Table(title=one.op, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.add_column("candidate", overflow="fold", min_width=18)
        for column in ("kind", "contract", "in context", "here"):
            table.add_column(column, no_wrap=column != "in context", overflow="fold")
        lacking: list[str] = []
        for candidate in one.candidates:
            missing = candidate.missing
            if missing and missing not in lacking:
                lacking.append(missing)
            here = f"no ({lacking.index(missing) + 1})" if missing else "yes"
            table.add_row(candidate.id, candidate.kind, candidate.contract, candidate.context or "", here)
        yield table
        yield "\n".join([*(f"({number}) {reason}" for number, reason in enumerate(lacking, start=1)), ""])


def project_problems(root: Path, extra: Sequence[str] = ()) -> tuple[int, list[str]]:
    """How many ops there are, and everything that is wrong with manifests, candidates and claims, a line each."""
    _, problems = readable_manifests(root / "shapes")
    with_manifest = {path.stem for path in manifest_files(root / "shapes")}
    with_folder = set(catalog.op_ids(root))
    problems += [
        f"shapes/{op}.yaml: there is no candidates/{op}/op.py; add it, or remove the manifest."
        for op in sorted(with_manifest - with_folder)
    ]
    found = survey(root, sorted(with_folder), extra, thorough=True)
    for op in found.ops:
        problems += [op.error] if op.error else [*op.manifest, *op.problems]
    problems += found.problems
    claims = root / "reports" / "claims.yaml"
    try:
        problems += check_rows(load_claims(claims), sorted(with_manifest)) if claims.exists() else []
    except UserError as error:
        problems.append(str(error))
    lines = (line for problem in problems for line in problem.splitlines())
    return len(with_manifest | with_folder), list(dict.fromkeys(lines))
