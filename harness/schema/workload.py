"""Workload manifests, `shapes/workloads/<workload>.yaml`: models at their published configurations and what is timed.

A component is one thing timed (a denoising step, a decode); a composition is a serving request made of components.
Read without torch.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from harness.errors import UserError
from harness.schema.case import Confidence, Identifier
from harness.schema.strict_yaml import Document, Loc
from harness.schema.validation import Problem, load_model, sentences

Config = dict[str, bool | int | float | str | tuple[int, ...] | tuple[str, ...]]
"""Arguments of a model's constructor, or sizes of its inputs."""
Size = Annotated[int, Field(strict=True, ge=1, le=1 << 20)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Execution(StrEnum):
    """How one run of a component is launched."""

    COMPILED = "compiled"
    """The repeated blocks (or the decoder) compiled, launched from Python."""
    CUDA_GRAPH = "cuda_graph"
    """The same, captured once and replayed: what serving engines do where launches dominate. Plain on a CPU."""


class Rehearsal(_Strict):
    """The tiny twin that runs on a CPU."""

    config: Config = Field(default_factory=dict)
    """Constructor arguments that differ from the component's."""
    inputs: dict[str, Size]
    """Sizes of the twin's inputs, same names as the component's."""


class Component(_Strict):
    """One thing timed end to end."""

    id: Identifier
    """Unique in its workload."""
    what: Annotated[str, Field(min_length=3, max_length=120)]
    """What one run is: `denoise step, 832x480, 81 frames, batch 1`."""
    config: Config = Field(default_factory=dict)
    """Constructor arguments that differ from the workload's, such as a smaller depth."""
    inputs: Annotated[dict[str, Size], Field(min_length=1)]
    """Sizes of the inputs, by the names the model's family takes."""
    execution: Execution = Execution.COMPILED
    stands_for: Identifier | None = None
    """The component of this workload that this one is a cheaper stand-in for (fewer layers of the same kind)."""
    depth_ratio: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = None
    """Layers of the component it stands for, over its own: so many runs of it take the time of one run of that, up to
    what lies outside the layers (0.02 % of the FLOPs of Wan's 14B at 4 of 40 layers)."""
    rehearsal: Rehearsal


class Part(_Strict):
    """One component's share of a request."""

    component: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.+-]*/[a-z0-9][a-z0-9_.+-]*$")]
    """`workload/component`."""
    times: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    """Runs of it in one request: steps x guidance branches, or decodes."""


class Composition(_Strict):
    """A named serving request; the verdict of a model is on these."""

    id: Identifier
    what: Annotated[str, Field(min_length=3, max_length=160)]
    """`50 steps with guidance, then one decode`."""
    parts: Annotated[tuple[Part, ...], Field(min_length=1)]
    excluded: Annotated[str, Field(min_length=3)]
    """What of the request is left out; it can only lower the gain. `text encoder`."""


class Workload(_Strict):
    """One model at its published configuration."""

    workload: Identifier
    """The name of this file, and the model's name in the shape manifests."""
    title: Annotated[str, Field(min_length=3, max_length=80)]
    family: Identifier
    """The module of `harness.e2e.models` that builds it."""
    config: Config = Field(default_factory=dict)
    """Arguments of the model's constructor that differ from its class's defaults."""
    ranks: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Processes that the model is split over, one device each; the op's wiring says how."""
    source: Annotated[str, Field(min_length=10)]
    """Where the configuration comes from."""
    confidence: Confidence
    components: Annotated[tuple[Component, ...], Field(min_length=1)]
    compositions: tuple[Composition, ...] = ()

    _document: Document = PrivateAttr()

    def component(self, component_id: str) -> Component:
        """The component of that id; raises `UserError` with the ids there are."""
        for component in self.components:
            if component.id == component_id:
                return component
        ids = ", ".join(component.id for component in self.components)
        raise UserError(f"workload {self.workload} has no component `{component_id}`; choose one of {ids}.")

    def place(self, loc: Loc = ()) -> str:
        """`file:line` of e.g. `("components", 0, "id")`."""
        return self._document.place(loc)


def load_workload(path: Path) -> Workload:
    """Read and check one workload; raises `UserError` with one line for each error, each with file, line and fix."""
    workload, document = load_model(path, Workload)
    workload._document = document
    if problems := sentences(document, _problems(workload)):
        raise UserError("\n".join(problems))
    return workload


def load_workloads(folder: Path) -> dict[str, Workload]:
    """All workloads of a folder by name; raises `UserError` with all errors of all of them."""
    workloads: dict[str, Workload] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            workloads[path.stem] = load_workload(path)
        except UserError as error:
            problems.append(str(error))
    known = {f"{name}/{component.id}" for name, workload in workloads.items() for component in workload.components}
    problems += chain.from_iterable(_unknown_parts(workload, known) for workload in workloads.values())
    if problems:
        raise UserError("\n".join(problems))
    return workloads


def merged(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """Later configurations over earlier ones."""
    return {name: value for config in configs for name, value in config.items()}


def _problems(workload: Workload) -> Iterator[Problem]:
    stem = workload._document.path.stem
    if workload.workload != stem:
        yield ("workload",), f"`workload` is {workload.workload} and the file is {stem}.yaml; give both one name."
    seen: set[str] = set()
    ids = [component.id for component in workload.components]
    for index, component in enumerate(workload.components):
        here: Loc = ("components", index)
        if component.id in seen:
            yield (*here, "id"), f"component id `{component.id}` stands here again; give it its own."
        seen.add(component.id)
        if component.stands_for is not None and component.stands_for not in ids:
            yield (
                (*here, "stands_for"),
                f"there is no component `{component.stands_for}`; choose from {', '.join(ids)}.",
            )
        if (component.stands_for is None) != (component.depth_ratio is None):
            yield here, "write both `stands_for` and `depth_ratio` (its layers over this one's), or neither."
        if set(component.rehearsal.inputs) != set(component.inputs):
            names = ", ".join(component.inputs)
            yield (*here, "rehearsal", "inputs"), f"must have the same names as the component's inputs; write {names}."
    composed: set[str] = set()
    for index, composition in enumerate(workload.compositions):
        here = ("compositions", index)
        if composition.id in composed:
            yield (*here, "id"), f"composition id `{composition.id}` stands here again; give it its own."
        composed.add(composition.id)
        if not any(part.component.startswith(f"{workload.workload}/") for part in composition.parts):
            yield (*here, "parts"), f"no part is of {workload.workload}; a request of this model needs one."


def _unknown_parts(workload: Workload, known: set[str]) -> Iterator[str]:
    for index, composition in enumerate(workload.compositions):
        for position, part in enumerate(composition.parts):
            if part.component not in known:
                place = workload.place(("compositions", index, "parts", position, "component"))
                yield f"{place}: there is no component `{part.component}`; choose from {', '.join(sorted(known))}."
