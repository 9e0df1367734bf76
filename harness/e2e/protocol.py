"""What the runner and the process of a cell say to each other, over the line that µbench workers use too."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness.protocol import Begin, BlockQuery, Blocks, Ended, Greeting, Lost, Message, Reply, TelemetryQuery
from harness.schema.manifest import Tolerance
from harness.schema.measurement import Setting
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus
from harness.schema.workload import Component, Config

DEFAULT_BUDGET_S = 300.0


LeftOut = dict[str, tuple[ArmStatus, str]]
"""Arms that a process does not build, each with the status and the reason that its record gives."""


class CellSettings(Message):
    """What the user can choose."""

    seed: int = 20_260_101
    budget_s: Annotated[float, Field(gt=0, le=36_000)] = DEFAULT_BUDGET_S
    """Seconds one cell may take."""
    tau0_log_pct: Annotated[float, Field(ge=0)] = 0.20
    """Standard deviation between processes that the number of pairs is chosen by."""
    slowdown_pct: Annotated[float, Field(ge=0, le=50)] = 0.0
    """Time the baseline once more, slowed by so much with a spin kernel: against that arm the rule must find a WIN of
    the baseline. 0 is off."""

    def stored(self) -> dict[str, Setting]:
        """As kept with a process; the seed has a field of its own."""
        return self.model_dump(exclude={"seed"})


class BeatenBefore(Message):
    """What a process of another cell found: the dynamic baseline of this very component is clearly beaten."""

    op: str
    device_key: str
    torch: str
    triton: str
    library: str
    """The model code's, with its version."""
    e2e_sha256: str
    reason: str


class CellJob(Message):
    """One process of a cell."""

    kind: Literal["cell"] = "cell"
    root: str
    op: str
    workload: str
    family: str
    context: str | None = None
    """Of the wiring: the op together with its neighbours, or alone."""
    config: Config
    """Of the model, the component's own over the workload's."""
    component: Component
    ranks: int = 1
    """Processes that the model is split over."""
    device_type: Literal["cuda", "cpu"]
    tolerance: Tolerance
    candidates: tuple[str, ...]
    left_out: LeftOut = Field(default_factory=dict)
    beaten_before: tuple[BeatenBefore, ...] = ()
    """On any device, with any versions: the process knows its own."""
    sequence: str
    process: int
    cold_compile: bool
    pairs: int | None
    """K; None in process 0, which chooses it from the spread of its first pairs."""
    p_max: int | None
    checkpoint: str | None = None
    """Folder of a local checkpoint."""
    lpips: str | None = None
    """Torch hub folder with AlexNet's weights, for LPIPS beside a checkpoint."""
    settings: CellSettings
    extra: tuple[str, ...] = ()
    broken: dict[str, str] = Field(default_factory=dict)
    """What must not be imported, with why."""


class CellHello(Greeting):
    """First message: where the process runs."""

    kind: Literal["cell_hello"] = "cell_hello"
    e2e_sha256: str
    wiring_sha256: str


class CellDone(Message):
    """The process is done."""

    kind: Literal["cell_done"] = "cell_done"
    record: ProcessRecord


class CellRefused(Message):
    """Nothing can be measured: one sentence says why."""

    kind: Literal["cell_refused"] = "cell_refused"
    reason: str


FromCell = CellHello | Begin | Ended | BlockQuery | TelemetryQuery | Blocks | CellDone | CellRefused | Lost
ToCell = CellJob | Reply

from_cell: TypeAdapter[FromCell] = TypeAdapter(Annotated[FromCell, Field(discriminator="kind")])
to_cell: TypeAdapter[ToCell] = TypeAdapter(Annotated[ToCell, Field(discriminator="kind")])
