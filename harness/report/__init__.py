"""From verdicts to the files of `reports/`, and back: recompute them and compare, without torch.

Everything but the pictures is the same bytes wherever it is made.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.paths import WORK_FOLDER, keep_whole
from harness.report import e2e, page, rehearsal
from harness.report.matrix import file_name, matrix_markdown
from harness.report.pictures import Picture, pictures_of
from harness.schema.claims import Claims, load_claims
from harness.schema.history import Change, Series
from harness.schema.manifest import load_manifest, load_manifests
from harness.schema.verdict import RowVerdict, Verdicts
from harness.schema.workload import load_workloads
from harness.store import Line, ProcessStore, Store
from harness.verdict import decide, present
from harness.verdict.remembered import Remembered

DIGITS = 6
"""Significant digits in verdicts.json: a difference of 0.1 % needs 4."""


def recompute(root: Path) -> Verdicts:
    """Decide everything from `results/`, `shapes/`, `candidates/` and `reports/claims.yaml` below the root.

    Every line of the store is read and validated. Raises UserError for a damaged store, a wrong manifest, or a claim
    that contradicts the evidence.
    """
    return _decide(root, Store(root / "results").load(), None)


def recall(root: Path, on_file: Callable[[str], None] = lambda _: None) -> Verdicts:
    """The verdicts of `recompute`, without reading or judging again what was read and judged before.

    What is remembered lies below the work folder; `on_file` is told each file that has to be read.
    """
    from harness.line_index import FOLDER, indexed

    folder = root / WORK_FOLDER / FOLDER
    lines = indexed(root / "results", folder, on_file)
    remembered = Remembered(folder)
    verdicts = _decide(root, lines, remembered)
    remembered.keep()
    return verdicts


def _decide(root: Path, lines: Sequence[Line], remembered: Remembered | None) -> Verdicts:
    manifests = load_manifests(root / "shapes")
    claims_file = root / "reports" / "claims.yaml"
    claims = load_claims(claims_file) if claims_file.exists() else Claims(rows={})
    return decide(
        lines,
        manifests,
        claims,
        present(root, manifests) if remembered is None else remembered.present(root, manifests),
        ProcessStore(root / "results").load(),
        load_workloads(root / "shapes" / "workloads"),
        remembered,
    )


def recompute_ops(root: Path, ops: Iterable[str]) -> Verdicts:
    """Decide these ops alone, whatever is wrong with others or with the claims; for what a run prints of itself."""
    manifests = {op: load_manifest(root / "shapes" / f"{op}.yaml") for op in ops}
    store = Store(root / "results")
    measured = [stored for op in manifests for stored in store.load(op)]
    processes = [stored for op in manifests for stored in ProcessStore(root / "results").load(op)]
    workloads = load_workloads(root / "shapes" / "workloads")
    return decide(measured, manifests, Claims(rows={}), present(root, manifests), processes, workloads)


def refresh(root: Path, ops: Iterable[str]) -> tuple[Verdicts, list[str]]:
    """Decide again and write `reports/`; the verdicts, and why the reports are as they were, a sentence each.

    Reports hold all ops: what is wrong with another op leaves them alone, and the verdicts are those of `ops`.
    """
    try:
        verdicts, measured = recall(root), frozenset(ops)
        write_all(verdicts, root / "reports", draw=lambda row: row.op in measured)
    except UserError as error:
        problems = [f"reports/ is as it was before: {line}" for line in str(error).splitlines()]
        return recompute_ops(root, ops), problems
    return verdicts, []


def render(verdicts: Verdicts) -> dict[str, str]:
    """The text files of `reports/` by name."""
    pages = {f"{row.op}.md": page.render(row) for row in verdicts.rows if row.cards}
    return {
        "matrix.md": matrix_markdown(verdicts),
        **{file_name(device): matrix_markdown(verdicts, device=device) for device in verdicts.devices},
        "rehearsal.md": rehearsal.render(verdicts),
        "verdicts.json": to_json(verdicts),
        **({"e2e.md": e2e.render(verdicts)} if any(row.cells for row in verdicts.rows) else {}),
        **pages,
    }


def write_all(verdicts: Verdicts, folder: Path, draw: Callable[[RowVerdict], bool] = lambda row: True) -> list[Path]:
    """Write every report, and the pictures of the rows that `draw` asks for; return the files.

    `folder` is the project's `reports/`: the runs of a history are read below its parent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in render(verdicts).items():
        keep_whole(folder / name, content.encode())
        written.append(folder / name)
    pictured = [row for row in verdicts.rows if draw(row) and pictures_of(row)]
    if pictured:
        from harness.report.plots import draw_row  # matplotlib alone takes longer to import than all the rest

        followed = [row.op for row in pictured if Picture.HISTORY in pictures_of(row)]
        series, changes = history_in_pictures(folder.parent, followed) if followed else ([], [])
        for row in pictured:
            written += draw_row(row, folder, series, changes)
    return written


def history_in_pictures(root: Path, ops: Iterable[str]) -> tuple[list[Series], list[Change]]:
    """Series and changes of these ops; without changes where the package that finds them is missing."""
    from harness.history import history
    from harness.history.changes import can_find

    return history(root, ops, find=can_find())


def verify(root: Path) -> list[str]:
    """How `reports/` differs from what `results/` say, a sentence each; empty when every byte is the same."""
    verdicts = recompute(root)
    expected = render(verdicts)
    pages = [f"{row.op}.md" for row in verdicts.rows] + [file.name for file in root.glob("reports/matrix-*.md")]
    differences = [
        f"reports/{name} has no evidence under results/; remove it."
        for name in sorted(pages)
        if name not in expected and (root / "reports" / name).exists()
    ]
    for name, content in expected.items():
        file = root / "reports" / name
        if not file.exists():
            differences.append(f"reports/{name} is missing; run `harness decide`.")
        elif (found := file.read_bytes()) != content.encode():
            line = _first_difference(found.split(b"\n"), content.encode().split(b"\n"))
            differences.append(f"reports/{name}:{line} is not what results/ say; run `harness decide`.")
    return differences


def _first_difference(found: list[bytes], expected: list[bytes]) -> int:
    """1-based line at which two texts part."""
    pairs = enumerate(zip(found, expected, strict=False), start=1)
    return next((line for line, (a, b) in pairs if a != b), min(len(found), len(expected)) + 1)


def to_json(verdicts: Verdicts) -> str:
    """Canonical JSON: fields in the order of the schema, numbers to six significant digits."""
    rounded = _rounded(verdicts.model_dump(mode="json"))
    return json.dumps(rounded, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
