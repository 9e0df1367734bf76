"""What the supervising process and its worker say to each other: one JSON line per message, over two pipes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from harness.schema.case import Case
from harness.schema.manifest import Tolerance
from harness.schema.measurement import DeviceRecord, EnvironmentRecord, Measurement, Setting, TelemetryRecord
from harness.schema.vocabulary import ArmStatus
from harness.store import ArmIdentity


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Settings(Message):
    """What the user can choose."""

    seed: int = 20_260_101
    seconds_per_arm: Annotated[float, Field(gt=0, le=600)] = 2.0
    cross_checks: bool = False
    """Also time every arm with `triton.testing.do_bench` and, cold, with CUPTI."""


def stored_settings(settings: Settings) -> dict[str, Setting]:
    """What of the settings shapes the samples, as kept with a measurement; the seed has a field of its own."""
    return {"seconds_per_arm": settings.seconds_per_arm}


class Task(Message):
    """One comparison to make."""

    case: Case
    """As measured: the twin on a CPU."""
    context: str | None
    quarantined: dict[str, tuple[ArmStatus, str]] = Field(default_factory=dict)
    """Arms that killed a worker on this task, with what to record."""
    build_s: dict[str, float] = Field(default_factory=dict)
    """Seconds of each arm's first call where `harness.prebuild` made it ahead, with caches as they were then."""
    only: frozenset[str] | None = None
    """For finding a culprit: the candidates to run beside the baseline; None means all."""
    trial: bool = False
    """For finding a culprit: as few blocks as possible, the result is not kept."""

    @property
    def name(self) -> str:
        """As shown to a person."""
        return self.case.id if self.context is None else f"{self.case.id} [{self.context}]"


class Job(Message):
    """First message to the worker."""

    kind: Literal["job"] = "job"
    root: str
    op: str
    device_type: Literal["cuda", "cpu"]
    tolerance: Tolerance
    tasks: tuple[Task, ...]
    """All of cases of one number of ranks."""
    settings: Settings
    extra: tuple[str, ...] = ()
    """Modules or files with more candidates."""
    broken: dict[str, str] = Field(default_factory=dict)
    """What must not be imported, with why; see `harness.survey`."""

    @property
    def ranks(self) -> int:
        """Processes that measure it."""
        return self.tasks[0].case.ranks if self.tasks else 1


class Go(Message):
    """The tasks to run, once the supervisor knows which are already in the store."""

    kind: Literal["go"] = "go"
    tasks: tuple[Task, ...]


class Reply(Message):
    """Answer to `BlockQuery` (`void`) or `TelemetryQuery` (`telemetry`)."""

    kind: Literal["reply"] = "reply"
    void: str = ""
    telemetry: TelemetryRecord | None = None


class Greeting(Message):
    """First message of a measuring process: where it runs."""

    environment: EnvironmentRecord
    peers: tuple[DeviceRecord, ...] = ()
    """The devices of the ranks after the first."""


class Hello(Greeting):
    """First message of the worker: where it runs and what it would measure."""

    kind: Literal["hello"] = "hello"
    identities: tuple[dict[str, ArmIdentity], ...]
    """Per task of the job, the candidates that concern it."""
    problems: tuple[str, ...]
    """What the catalog found wrong."""


class Begin(Message):
    """The next step touches this arm and may take this long."""

    kind: Literal["begin"] = "begin"
    task: str
    arm: str
    phase: str
    limit_s: float


class Ended(Message):
    """This rank is through the step it began; only said where there are others."""

    kind: Literal["ended"] = "ended"
    error: str
    """What it raised there, or ""."""


class BlockQuery(Message):
    """Does the block in this span of `time.monotonic` count?"""

    kind: Literal["block"] = "block"
    start_s: float
    stop_s: float


class TelemetryQuery(Message):
    """Summarise this span."""

    kind: Literal["telemetry"] = "telemetry"
    start_s: float
    stop_s: float
    void: int


class Blocks(Message):
    """Progress inside one comparison."""

    kind: Literal["blocks"] = "blocks"
    done: int
    most: int


class Done(Message):
    """One task is measured."""

    kind: Literal["done"] = "done"
    measurement: Measurement


class Unfit(Message):
    """The clock's controls failed: nothing can be measured here."""

    kind: Literal["unfit"] = "unfit"
    reason: str


class Lost(Message):
    """This arm's error took the CUDA context; the worker ends."""

    kind: Literal["lost"] = "lost"
    arm: str
    error: str


class Finished(Message):
    """All tasks are done; the worker ends."""

    kind: Literal["finished"] = "finished"


FromWorker = Hello | Begin | Ended | BlockQuery | TelemetryQuery | Blocks | Done | Unfit | Lost | Finished
ToWorker = Job | Go | Reply

from_worker: TypeAdapter[FromWorker] = TypeAdapter(Annotated[FromWorker, Field(discriminator="kind")])
to_worker: TypeAdapter[ToWorker] = TypeAdapter(Annotated[ToWorker, Field(discriminator="kind")])
