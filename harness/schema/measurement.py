"""What one line of `results/` holds: everything seen in one measurement, raw samples included, and no decision.

Measuring writes these; deciding (`harness.verdict`) and reporting only read them. Times are µs per call unless the
name says otherwise. Format history:

1. first format.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.schema.case import Case
from harness.schema.vocabulary import ArmStatus, Cache, Contract, Kind, Method, Role, RunStatus

SCHEMA_VERSION: Literal[1] = 1
Setting = bool | int | float | str
Finite = Annotated[float, Field(allow_inf_nan=False)]
Time = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
"""µs; what no clock can have read (zero, less) is stored as seen and judged invalid."""


def is_none(value: object) -> bool:
    """For fields that are written only where they say something."""
    return value is None


class Record(BaseModel):
    """Base of everything stored: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DeviceRecord(Record):
    """The device, by identifiers that survive a reboot; `uuid` and `boot_id` tell cards and boots apart."""

    key: str
    """Folder name under `results/`, made of `name`, `sm_count`, `memory_gib` and `driver_major` alone."""
    type: Literal["cuda", "cpu"]
    name: str
    sm_count: int
    """Multiprocessors of a GPU, logical cores of a CPU."""
    memory_gib: int
    driver_major: str
    """NVIDIA driver's major version; `none` on a CPU."""
    l2_bytes: int
    uuid: str
    boot_id: str


class EnvironmentRecord(Record):
    """What was installed and which sources ran."""

    packages: dict[str, str]
    """Distribution name to version, of every package that can move a time."""
    python: str
    driver: str
    """Full driver version; `none` on a CPU."""
    cuda: str
    """CUDA version torch was built for; `none` on a CPU build."""
    git_sha: str | None
    """None outside a checkout; `+dirty` is appended when tracked files differ."""
    harness_sha256: str
    """Content hash of the harness sources that shape a measured number: `harness.sources.MEASURING`."""
    op_sha256: str
    """Content hash of the op's folder, the providers' folder and the manifest's tolerance: `harness.sources`."""
    device: DeviceRecord


class ControlsRecord(Record):
    """The clock's own controls, read at the start of the run."""

    noop_us: Finite
    """Time per launch of a candidate that does nothing."""
    copy_bytes_per_us: Finite
    """Ceiling: bytes read plus written per µs by a copy far larger than L2."""
    noop_limit_us: Finite
    launch_floor_us: Finite = 0.0
    """Time per launch of a kernel that touches one element: what a tiny case cannot get under. 0 on a CPU."""
    passed: bool
    reason: str = ""


class GateRecord(Record):
    """How far a candidate's output lies from native and from the oracle, over all seeds and input variants."""

    passed: bool
    reason: str = ""
    """Why it failed, in one sentence; empty when it passed."""
    oracle: str
    """`float64` or `float32`."""
    elements: int
    """Elements compared on the plain N(0, 1) inputs of the first seed."""
    literal_failures: int
    """Elements outside the RFC's `allclose(atol, rtol)` against native; printed beside the verdict of the rule."""
    rule_failures: int
    """Elements that fail the project's rule."""
    max_abs_error_native: Finite
    rms_error_oracle: Finite
    rms_error_native_oracle: Finite
    """Native's own RMS error against the oracle."""
    max_ulp: int
    p999_ulp: int
    bit_exact: bool
    """`torch.equal` to native on every seed and variant tried."""
    deterministic: bool
    variants: tuple[str, ...]
    """Input variants tried: `normal`, `large`, `small`, `offset`, ..."""
    notes: tuple[str, ...] = ()


class RankTimes(Record):
    """What each rank saw of an arm's samples, which are from the last rank's entry to the last rank's exit."""

    durations_us: tuple[tuple[tuple[Time, ...], tuple[Time, ...]], ...]
    """Per block, on the way out and back: µs per call (end to end: per run) as each rank saw it, the lateness of others
    included."""
    skews_us: tuple[tuple[Time, Time], ...]
    """Per block, on the way out and back: µs from the first rank's entry into the sample to the last's."""
    uncertainty_us: Finite
    """How far off a rank's clock may have lain on the common scale, at worst; 0 where ranks share one clock."""


class RanksRecord(Record):
    """The ranks that measured together."""

    devices: tuple[str, ...]
    """UUID of each rank's device."""


class ArmRecord(Record):
    """One arm of a measurement. Arms that were not timed have no samples and a status and reason instead."""

    id: str
    """Candidate id; `torch.compile` is the baseline, `torch.compile_control` and `torch.compile_twin` its controls."""
    kind: Kind
    role: Role
    contract: Contract
    status: ArmStatus
    reason: str = ""
    provider_version: str | None = None
    source_sha256: str = ""
    """Content hash of the files the candidate is made of."""
    gate: GateRecord | None = None
    gate_after: GateRecord | None = None
    """The gate repeated on the timed callable after timing."""
    kernels: tuple[str, ...] = ()
    """Device kernels (or CPU ops) seen in a profile of one call of the timed callable."""
    graph_count: int | None = None
    """Graphs compiled, for compile and rewrite arms; 1 is certified."""
    registration: str = ""
    """`custom_op`, `function` or `compiled`."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Configurations an autotuner chose, by kernel."""
    build_s: Finite = 0.0
    """First call: compile, JIT, autotune; see `Measurement.compile_cache`."""
    peak_bytes: int = 0
    """Peak device memory of one call above its inputs."""
    host_us: Finite | None = None
    """Launch-inclusive wall time per call, no graph."""
    fenced_us: Finite | None = None
    """Device time per call behind another kernel, where none of it can hide under the call before it."""
    profiler_us: Finite | None = None
    """Device time per call as CUPTI (torch profiler) reports it: the independent clock."""
    do_bench_us: Finite | None = None
    """`triton.testing.do_bench` median of the same callable, when cross-checks were asked for."""
    launches: int = 0
    """Launches per sample."""
    samples_us: tuple[tuple[Time, Time], ...] = ()
    """Per block: time per call on the way out and on the way back; indexes `Measurement.orders`."""
    rank_times: Annotated[RankTimes | None, Field(exclude_if=is_none)] = None
    """For a case of several ranks."""


class TelemetryRecord(Record):
    """What the watcher saw over the timed part; the GPU's figures are zero on a CPU."""

    available: bool
    polls: int = 0
    sm_clock_mhz_median: Finite = 0.0
    sm_clock_mhz_min: Finite = 0.0
    memory_clock_mhz_median: Finite = 0.0
    power_w_median: Finite = 0.0
    temperature_c_max: Finite = 0.0
    throttle_reasons: tuple[str, ...] = ()
    foreign_pids: tuple[int, ...] = ()
    foreign_cpu_share_max: Finite = 0.0
    """Largest share of all cores that other processes kept busy between two polls; watched on a CPU."""
    blocks_void: int = 0
    """Blocks thrown away and measured again for a foreign process or a throttle, before their times were read."""


class RooflineRecord(Record):
    """The least time the bytes allow: an equally large, equally cold copy timed in this very run."""

    bytes_moved: Annotated[int, Field(ge=0)]
    copy_us: Annotated[float, Field(gt=0, le=1e12)]
    l2_resident: bool
    """One set of inputs and outputs fits in L2, or the cache is declared warm: the DRAM line is no limit then."""
    floor_bytes: int | None = None
    """Bytes of the op's stated floor (`Op.floor_bytes`), e.g. two reads and a write; None when it states none."""


class Measurement(Record):
    """One case, alone or in one context, with all its arms interleaved. One line of the store."""

    schema_version: Literal[1] = SCHEMA_VERSION
    stage: Literal["microbench"] = "microbench"
    op: str
    case: Case
    """The case as measured: on a CPU the small twin."""
    context: str | None
    status: RunStatus
    reason: str = ""
    environment: EnvironmentRecord
    controls: ControlsRecord | None
    roofline: RooflineRecord | None
    method: Method
    cache: Cache
    rotation: int
    """Distinct sets of inputs and outputs a sample goes through."""
    rotated_bytes: int
    compile_cache: str
    """`fresh` or `kept`: whether Inductor's and Triton's caches were empty when the worker started; `built ahead` when
    builders filled them first, several at once, and `build_s` is theirs."""
    seed: int
    settings: dict[str, Setting] = Field(default_factory=dict)
    """What the user can choose and that shapes the samples (time budget, cross-checks, ...); part of the resume key."""
    input_fingerprints: dict[str, str]
    """64-bit positional checksum of every drawn tensor; equal on every device. Those of rank 1 are called `name@1`."""
    orders: tuple[tuple[int, ...], ...]
    """Per block: the order of arms (indices into `timed_arms`) on the way out; the way back is its reverse."""
    timed_arms: tuple[str, ...]
    """Ids of the arms that were timed, in index order."""
    arms: tuple[ArmRecord, ...]
    telemetry: TelemetryRecord
    phases_s: dict[str, Finite]
    """Wall seconds by phase: setup, gate, build, timing, ..."""
    started_at: str
    """UTC, ISO 8601."""
    ranks: Annotated[RanksRecord | None, Field(exclude_if=is_none)] = None
    """For a case of several ranks; `environment` is the first one's."""

    @model_validator(mode="after")
    def _consistent(self) -> "Measurement":
        """Parts that contradict each other were not measured."""
        if len({arm.id for arm in self.arms}) != len(self.arms):
            raise ValueError("two arms have one id")
        if any(sorted(order) != list(range(len(self.timed_arms))) for order in self.orders):
            raise ValueError("an order is no permutation of the timed arms")
        if self.status is RunStatus.MEASURED and self.controls is not None and not self.controls.passed:
            raise ValueError("measured although the clock's controls failed")
        datetime.fromisoformat(self.started_at)
        return self

    @property
    def key(self) -> str:
        """What makes a measurement the same one for resuming: see `harness.store.resume_key`."""
        return f"{self.op}/{self.case.id}/{self.context or 'alone'}"

    def arm(self, arm_id: str) -> ArmRecord | None:
        """The arm of that id, or None."""
        return next((arm for arm in self.arms if arm.id == arm_id), None)
