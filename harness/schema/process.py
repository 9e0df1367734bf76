"""What one line of `results/<device>/e2e/` holds: one fresh process of an end-to-end cell, raw times included.

A cell is one op in one component of one workload; a sequence is the processes that one call of the runner starts for
it, all with the arms, pairs and limits declared before its second process. Times are ms per run. Format history:

1. first format;
2. an arm may be BEATEN or DECIDED: it is in the record with its reason, without times;
3. without `ceiling_bytes`, what the ceiling's arm moved itself: it does no work.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from harness.schema.measurement import (
    EnvironmentRecord,
    Finite,
    GateRecord,
    RanksRecord,
    RankTimes,
    Record,
    Setting,
    TelemetryRecord,
    is_none,
)
from harness.schema.vocabulary import ArmStatus, Contract, Kind, RunStatus
from harness.schema.workload import Component

PROCESS_SCHEMA_VERSION: Literal[3] = 3


class ModelRole(StrEnum):
    """What an arm is for."""

    BASELINE = "baseline"
    """Native + torch.compile, static shapes."""
    BASELINE_DYNAMIC = "baseline_dynamic"
    """Native + torch.compile(dynamic=True), as vllm-omni compiles its blocks: a win must hold against the faster."""
    TWIN = "twin"
    """Native again with its own code objects and its own compile: must not be told from the baseline."""
    CEILING = "ceiling"
    """The op's work left out: what a candidate that takes no time would gain."""
    OPAQUE = "opaque"
    """Native behind a custom op: what the lost fusion costs."""
    POSITIVE = "positive"
    """The baseline slowed by a known share: the baseline itself must win against it."""
    CANDIDATE = "candidate"


class CallsRecord(Record):
    """Proof that the candidate is what ran."""

    expected: int
    """Calls of the op in one run of the unwired model, counted by hooks on its own modules."""
    eager: int | None = None
    """Calls of the candidate (and of native where its guard declined) in one eager run of the wired model; None where
    none was made: it is made in process 0, for candidates."""
    compiled: int | None = None
    """Calls of the candidate's custom op in one run of the timed callable, from its profile; None for what is compiled
    in (rewrites) and inside a replayed graph, where kernels are counted."""
    kernels: dict[str, int] = Field(default_factory=dict)
    """Launches in one run of the timed callable of each kernel the candidate declares, by the declared pattern."""
    native_nodes: dict[str, int] = Field(default_factory=dict)
    """Nodes of the compiled graphs that the native formula is made of, by pattern, in this arm."""
    native_nodes_baseline: dict[str, int] = Field(default_factory=dict)
    """The same in the baseline."""
    graphs: int = 1
    """Graphs that these nodes were counted in: a wiring that carries a residual has a first layer of its own."""
    graphs_baseline: int = 1
    declined: dict[str, str] = Field(default_factory=dict)
    """Calls that the candidate's guard leaves to native: shape to reason."""


class QualityRecord(Record):
    """How far the model's output moved."""

    rms_error: Finite
    """Against an fp32 copy of the model, relative to the fp32 output's RMS."""
    rms_error_native: Finite
    """The baseline's own."""
    bit_exact: bool
    """Eager wired output equals eager native output."""
    psnr_db: Finite | None = None
    """Against native, with a real checkpoint only: random weights pass anything."""
    ssim: Finite | None = None
    lpips: Finite | None = None
    """Of images (a decoder's output) on AlexNet, where its weights were given."""

    @property
    def ratio(self) -> float:
        """The arm's error over native's: legal changes of rounding lie at 1.00 to 1.07, wrong kernels above 1.9."""
        return self.rms_error / self.rms_error_native if self.rms_error_native else float(self.rms_error > 0) + 1.0


class ModelArmRecord(Record):
    """One arm of one process."""

    id: str
    role: ModelRole
    kind: Kind
    contract: Contract
    status: ArmStatus
    reason: str = ""
    provider_version: str | None = None
    source_sha256: str = ""
    graph_count: int | None = None
    """Graphs compiled for this arm up to the end of the warm-up."""
    graphs_added: int = 0
    """Graphs compiled while it was timed: 0, or the times are not of one program."""
    compile_s: Finite = 0.0
    """First run, compilation included."""
    peak_bytes: int = 0
    """Peak device memory of one run, weights included."""
    calls: CallsRecord | None = None
    shadow: GateRecord | None = None
    """The gate's element rule over every call of one eager run, on the model's own activations."""
    quality: QualityRecord | None = None
    times_ms: tuple[tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]], ...] = ()
    """Per block: time per run on the way out and on the way back; indexes `ProcessRecord.orders`."""
    rank_times: Annotated[RankTimes | None, Field(exclude_if=is_none)] = None
    """For a model split over ranks."""


class ProcessRecord(Record):
    """One fresh process of a cell with all its arms interleaved. One line of the store."""

    @model_validator(mode="before")
    @classmethod
    def _without_ceiling_bytes(cls, given: Any) -> Any:
        """Of records before format 3."""
        if isinstance(given, dict) and given.get("schema_version") in (1, 2):
            return {name: value for name, value in given.items() if name != "ceiling_bytes"}
        return given

    schema_version: Literal[1, 2, 3] = PROCESS_SCHEMA_VERSION
    stage: Literal["e2e"] = "e2e"
    op: str
    context: str | None = None
    """Of the wiring: the op together with its neighbours, or alone."""
    workload: str
    component: Component
    """As run: on a CPU its `rehearsal` twin's sizes."""
    sequence: str
    """Id of the sequence of processes this one belongs to; processes of two sequences are never joined."""
    process: Annotated[int, Field(ge=0)]
    """Place in the sequence, from 0."""
    cold_compile: bool
    """Whether the compile caches were empty: processes 0, 2, 4, ..."""
    p_max: int | None
    """Processes declared for the sequence; fixed before process 1, so unknown in process 0."""
    pairs: int
    """K: blocks kept of this process."""
    status: RunStatus
    reason: str = ""
    environment: EnvironmentRecord
    library: str
    """Distribution of the model code, with its version."""
    checkpoint: str | None
    """Content hash of the local checkpoint; None for random weights."""
    attention_backend: str
    upstream: dict[str, str]
    """SHA-256 of the source of every upstream object that the wiring binds to."""
    e2e_sha256: str
    """Content hash of the harness sources of this stage: `harness.sources.MEASURING_E2E`."""
    wiring_sha256: str
    """Content hash of the op's wirings and what they import: `harness.imported`."""
    seed: int
    settings: dict[str, Setting]
    """What the user can choose and that shapes the samples: budget, slow-down of the positive control."""
    op_bytes: Annotated[int, Field(ge=0)]
    """Bytes the op must move in one run, over all its calls: `Op.bytes_moved`."""
    copy_bytes_per_us: Annotated[float, Field(gt=0)]
    """Copy bandwidth of the device, read plus write, measured in this process."""
    runs_per_sample: int
    orders: tuple[tuple[int, ...], ...]
    timed_arms: tuple[str, ...]
    arms: tuple[ModelArmRecord, ...]
    start_s: Finite
    """C0: from the start of the process to its first kept block."""
    pair_s: Finite
    """Seconds of one block over its number of arms times two: one baseline-candidate pair."""
    telemetry: TelemetryRecord
    phases_s: dict[str, Finite]
    started_at: str
    ranks: Annotated[RanksRecord | None, Field(exclude_if=is_none)] = None
    """For a model split over ranks, which are processes of their own: this is rank 0's record of all."""

    @model_validator(mode="after")
    def _consistent(self) -> "ProcessRecord":
        """Parts that contradict each other were not measured."""
        if len({arm.id for arm in self.arms}) != len(self.arms):
            raise ValueError("two arms have one id")
        if any(sorted(order) != list(range(len(self.timed_arms))) for order in self.orders):
            raise ValueError("an order is no permutation of the timed arms")
        timed = [arm for arm in self.arms if arm.id in self.timed_arms]
        if any(len(arm.times_ms) != len(self.orders) for arm in timed):
            raise ValueError("a timed arm has not one pair of times for each block")
        datetime.fromisoformat(self.started_at)
        return self

    def arm(self, arm_id: str) -> ModelArmRecord | None:
        """The arm of that id, or None."""
        return next((arm for arm in self.arms if arm.id == arm_id), None)
