"""Shape manifests, `shapes/<op>.yaml`: the cases of one op, where they come from, and its row of the RFC's matrix.

Read without torch. What only the op can judge (dim orders, params, contexts) is `check_against_op`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from harness.errors import UserError
from harness.schema import strict_yaml
from harness.schema.case import Case, Identifier
from harness.schema.manifest_checks import against_op, cross_problems
from harness.schema.strict_yaml import Document, Loc, shown
from harness.schema.validation import Problem, sentences, validated

if TYPE_CHECKING:
    from harness.op import Op

NO_REF = "—"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RowType(StrEnum):
    """The RFC's column `Type`."""

    SINGLE = "Single"
    FUSED = "Fused"


class Row(_Strict):
    """The op's row of the RFC's matrix, in the RFC's words."""

    title: Annotated[str, Field(min_length=1, max_length=60)]
    """The RFC's name of the op, e.g. `GroupNorm + SiLU`."""
    type: RowType
    order: Annotated[int, Field(ge=1)]
    """Place in the RFC's table, from 1."""
    triton_ref: str = NO_REF
    """The RFC's Triton candidates."""
    cuda_ref: str = NO_REF
    """The RFC's existing CUDA candidates."""


class Tolerance(_Strict):
    """The RFC's gate against native, `|y - native| <= atol + rtol * |native|`."""

    atol: Annotated[float, Field(ge=0)]
    """Absolute tolerance."""
    rtol: Annotated[float, Field(ge=0)]
    """Relative tolerance."""


class Manifest(_Strict):
    """One op: its row, its tolerance and its cases."""

    op: Identifier
    """Id of the op: the name of this file and of its folder under `candidates/`."""
    row: Row
    """The op's row of the RFC's matrix."""
    tolerance: Tolerance
    """The gate's tolerance against native."""
    deciding_models: Annotated[tuple[Identifier, ...], Field(min_length=1)]
    """Models that must all be tested before the row can be ❌."""
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    """The shapes to measure."""

    _document: Document = PrivateAttr()

    def place(self, loc: Loc = ()) -> str:
        """`file:line` of e.g. `("cases", 3, "dims")`."""
        return self._document.place(loc)

    def case(self, case_id: str) -> Case:
        """The case of that id; raises `UserError` with the ids there are."""
        for case in self.cases:
            if case.id == case_id:
                return case
        ids = ", ".join(case.id for case in self.cases)
        raise UserError(f"{shown(self._document.path)}: there is no case `{case_id}`; choose one of {ids}.")

    def steps(self) -> dict[tuple[str, str], tuple[Case, ...]]:
        """Cases by (model, step), in file order: only within one of these may `calls` weight cases together."""
        by_step: dict[tuple[str, str], tuple[Case, ...]] = {}
        for case in self.cases:
            by_step[case.model, case.step] = (*by_step.get((case.model, case.step), ()), case)
        return by_step


@dataclass(frozen=True)
class Draft:
    """A manifest as far as it can be read: everything that is wrong with it, and the cases that are not."""

    document: Document
    manifest: Manifest | None
    """None when something is wrong."""
    cases: tuple[tuple[int, Case], ...]
    """Cases that are right in themselves, with their places in the file."""
    problems: tuple[Problem, ...]
    """Beside what the reader of the file refused."""

    def sentences(self, op: "Op | None" = None) -> list[str]:
        """What is wrong, one `file:line: sentence` each; with an op also what it finds impossible."""
        against = [*self.problems, *(_op_problems(self, op) if op is not None else ())]
        return sentences(self.document, against)


def read_manifest(path: Path) -> Draft:
    """Read one manifest with all its errors at once; raises `UserError` for a file that is not YAML."""
    document = strict_yaml.read(path)
    manifest, problems = validated(document, Manifest)
    if manifest is not None:
        manifest._document = document
        cases = tuple(enumerate(manifest.cases))
        problems = [*cross_problems(document, manifest.op, manifest.deciding_models, cases, frozenset())]
        return Draft(document, None if problems else manifest, cases, tuple(problems))
    listed = document.data.get("cases")
    listed = listed if isinstance(listed, list) else []
    cases = tuple((index, case) for index, raw in enumerate(listed) if (case := _case_of(document, index, raw)))
    right = {index for index, _ in cases}
    doubtful = frozenset(
        raw.get("model") if isinstance(raw, dict) else None for index, raw in enumerate(listed) if index not in right
    ) | (frozenset() if listed else {None})
    deciding = document.data.get("deciding_models")
    names = tuple(name for name in deciding if isinstance(name, str)) if isinstance(deciding, list) else ()
    op = document.data.get("op")
    more = cross_problems(document, op if isinstance(op, str) else None, names, cases, doubtful)
    return Draft(document, None, cases, (*problems, *more))


def _case_of(document: Document, index: int, raw: object) -> Case | None:
    if any(loc[:2] == ("cases", index) for loc, _, _ in document.refused):
        return None
    try:
        return Case.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError:
        return None


def load_manifest(path: Path) -> Manifest:
    """Read and check one manifest; raises `UserError` with one line for each error, each with file, line and fix."""
    draft = read_manifest(path)
    if draft.manifest is None:
        raise UserError("\n".join(draft.sentences()))
    return draft.manifest


def manifest_files(folder: Path) -> list[Path]:
    """The manifests of a folder, and files that look like one."""
    return sorted(folder.glob("*.y*ml"))


def load_manifests(folder: Path) -> dict[str, Manifest]:
    """All manifests of a folder by op, in the order of the RFC's table; raises `UserError` with all errors of all."""
    manifests, problems = readable_manifests(folder)
    if problems:
        raise UserError("\n".join(problems))
    return manifests


def readable_manifests(folder: Path) -> tuple[dict[str, Manifest], list[str]]:
    """The manifests that are in order, by op in the order of the RFC's table, and the errors of all the others."""
    manifests: list[Manifest] = []
    problems: list[str] = []
    for path in manifest_files(folder):
        try:
            if path.suffix != ".yaml":
                raise UserError(f"{shown(path)}: manifests end in .yaml; rename the file.")
            manifests.append(load_manifest(path))
        except UserError as error:
            problems.append(str(error))
    manifests.sort(key=lambda manifest: manifest.row.order)
    for order, sharing in groupby(manifests, key=lambda manifest: manifest.row.order):
        first, *others = sharing
        problems += [
            f"{other.place(('row', 'order'))}: order {order} is taken by {first.op}; give each row its own place."
            for other in others
        ]
    if not manifests and not problems:
        problems.append(f"{shown(folder)}: there are no manifests; name a folder with <op>.yaml files.")
    return {manifest.op: manifest for manifest in manifests}, problems


def check_against_op(manifest: Manifest, op: "Op") -> list[str]:
    """What the op finds impossible in its manifest, one `file:line: sentence` each: dim orders, params, contexts."""
    draft = Draft(manifest._document, manifest, tuple(enumerate(manifest.cases)), ())
    return draft.sentences(op)


def _op_problems(draft: Draft, op: "Op") -> Iterator[Problem]:
    called = draft.document.data.get("op")
    if called != op.id:
        yield ("op",), f"`op` is {called} and the op calls itself {op.id}; give both one id."
    for index, case in draft.cases:
        here: Loc = ("cases", index)
        yield from (((*here, *loc), f"case {case.id}: {sentence}") for loc, sentence in against_op(case, op))


def json_schema() -> dict[str, Any]:
    """JSON Schema of a manifest, for editors and other tools."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Manifest.model_json_schema()
