"""What deciding makes of the store: every number and word that a report prints. Computed, never stored by hand.

Log-ratios are log-percent, 100 ln(t_baseline / t_candidate): positive means that the candidate is faster. Ratios are
t_other / t_candidate: 1.35 means that the candidate takes 1/1.35 of the other's time. Intervals are two-sided 95 %.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from harness.schema.case import Case
from harness.schema.e2e_verdict import CellVerdict
from harness.schema.figures import Evidence, RankFigures, Span
from harness.schema.measurement import DeviceRecord, GateRecord, Record, Setting, TelemetryRecord, is_none
from harness.schema.vocabulary import ArmStatus, Cache, Contract, Kind, Method, Outcome, Role, RunStatus, Tracker

CLOCKS_AGREE_SHARE = 0.03
"""The other clock's reading is a run of its own, seconds later and at another moment of the power cap's swing."""
CLOCKS_AGREE_US = 0.5
"""Resolution of the two clocks on the shortest kernels."""
CLOCKS_GAP_US = 1.0
"""Our time runs from launch to launch and so holds one gap for each kernel, which CUPTI's kernel times leave out."""


class ArmVerdict(Record):
    """One arm of one measurement, judged against that measurement's baseline."""

    id: str
    kind: Kind
    role: Role
    contract: Contract
    provider_version: str | None
    status: ArmStatus
    outcome: Outcome
    reason: str
    """Why there is no outcome from times; empty when there is one."""
    notes: tuple[str, ...] = ()
    time_us: Span | None = None
    """Per call, cold or warm as the measurement says."""
    effect_log_pct: Span | None = None
    ratio: Span | None = None
    """To the baseline, torch.compile."""
    rivals: dict[str, Span] = Field(default_factory=dict)
    """Ratio to each other candidate timed in the same measurement."""
    copy_share: float | None = None
    """Time of the equally large copy over the arm's time: 1 is the roofline."""
    floor_share: float | None = None
    """Time of the op's stated floor over the arm's time."""
    gate: GateRecord | None = None
    gate_after_passed: bool | None = None
    kernels: tuple[str, ...] = ()
    graph_count: int | None = None
    registration: str = ""
    tags: dict[str, str] = Field(default_factory=dict)
    build_s: float = 0.0
    peak_bytes: int = 0
    host_us: float | None = None
    fenced_us: float | None = None
    profiler_us: float | None = None
    do_bench_us: float | None = None
    launches: int = 0

    @property
    def cross_checked(self) -> bool:
        """Whether other clocks read it in the same run, over the same rotation."""
        return self.time_us is not None and self.do_bench_us is not None

    @property
    def clocks_agree(self) -> bool | None:
        """Whether CUPTI's sum of kernel times is ours less the gaps between kernels; None where it was not read."""
        if not self.cross_checked or self.time_us is None or not self.profiler_us:
            return None
        slack_us = max(CLOCKS_AGREE_SHARE * self.time_us.estimate, CLOCKS_AGREE_US)
        gaps_us = CLOCKS_GAP_US * max(1, len(self.kernels))
        return -slack_us <= self.time_us.estimate - self.profiler_us <= slack_us + gaps_us


class Comparison(Record):
    """One case, alone or in one context, on one card: the measurement that counts."""

    case: Case
    """The manifest's case, at the sizes measured: on a CPU those of the small twin."""
    measured_as: str
    """Id of the case it was measured for: another one where two have the same shape."""
    context: str | None
    evidence: Evidence
    started_at: str
    status: RunStatus
    invalid: str
    """Why no arm of it has an outcome; empty when they have."""
    reference: str = ""
    """The arm that candidates are judged against: the baseline, or its twin where that compile came out faster."""
    lottery: str = ""
    """How far the baseline's two compiles lie apart, where they do not tie; empty where they do."""
    allowance_log_pct: float = 0.0
    """How far the same code was from itself, where it did not tie: every interval is widened by so much."""
    stale: tuple[str, ...]
    """What has changed since, one reason each: sources or package versions."""
    case_changed: bool
    """The manifest's case is no longer the one measured; it counts for nothing then."""
    passed_over: int
    """Other measurements of the same case and context on this card that this one supersedes."""
    method: Method
    cache: Cache
    blocks: int
    rotation: int
    rotated_bytes: int
    compile_cache: str
    bytes_moved: int | None
    copy_us: float | None
    floor_us: float | None
    l2_resident: bool
    noop_us: float | None
    settings: dict[str, Setting]
    telemetry: TelemetryRecord
    phases_s: dict[str, float]
    arms: tuple[ArmVerdict, ...]
    ranks: Annotated[RankFigures | None, Field(exclude_if=is_none)] = None
    """For a case of several ranks."""

    @property
    def baseline(self) -> ArmVerdict | None:
        """The arm every ratio is to."""
        return next((arm for arm in self.arms if arm.role is Role.BASELINE), None)

    @property
    def controls(self) -> tuple[ArmVerdict, ...]:
        """The same code once more, and its separately compiled twin."""
        return tuple(arm for arm in self.arms if arm.role in (Role.CONTROL, Role.TWIN))

    @property
    def candidates(self) -> tuple[ArmVerdict, ...]:
        """The arms that compete."""
        return tuple(arm for arm in self.arms if arm.role is Role.CANDIDATE)


class CandidateVerdict(Record):
    """One candidate over all cases of one step of a model, weighted by calls: the step's total time in the op."""

    id: str
    kind: Kind
    outcome: Outcome
    reason: str
    ratio: Span | None = None
    effect_log_pct: Span | None = None
    geomean_ratio: float | None = None
    """Unweighted over the cases: a headline that no decision uses."""
    baseline_step_us: float | None = None
    candidate_step_us: float | None = None
    waiting: bool = False
    """Not run for want of a package or a measurement: it might still win."""
    covered: int
    """Cases it was timed on; on the rest it is ineligible and counts as the baseline."""
    cases: int


class StepVerdict(Record):
    """All candidates on the cases of one step of one model, and the leader.

    The leader is chosen on the even blocks and confirmed on the odd ones, so its figures carry no winner's curse.
    """

    model: str
    step: str
    case_ids: tuple[str, ...]
    """The cases weighted together: those known from memory are left out where others are there."""
    left_out: tuple[str, ...]
    """Cases known from memory alone that were left out."""
    unmeasured: tuple[str, ...] = ()
    """Of `case_ids`, those without a measurement at the manifest's present sizes."""
    decides: bool
    """Whether the row waits for it: a deciding model, and dims that are more than a memory."""
    candidates: tuple[CandidateVerdict, ...]
    leader: str | None = None
    leader_ratio: Span | None = None
    """On the odd blocks."""
    p_faster: float | None = None
    """One-sided p-value on the odd blocks against `the leader is faster by less than 1 %`."""
    outcome: Outcome
    """The leader's on the odd blocks, or why there is none."""
    reason: str
    settled: bool
    """Nothing more could be measured here: it says so even where the outcome is not FASTER."""


def by_measurement(comparisons: Iterable[Comparison]) -> list[list[Comparison]]:
    """Comparisons grouped by the line of evidence they share, in the order of each group's first."""
    groups: dict[tuple[str, int], list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault((one.evidence.file, one.evidence.line), []).append(one)
    return list(groups.values())


class Agreement(Record):
    """Our time over another clock's time of the same callables in the same run."""

    arms: int
    agreeing: int | None
    """Callables on which the two agree (`ArmVerdict.clocks_agree`); None where no agreement is expected."""
    median: float
    lowest: float
    highest: float


class CardVerdict(Record):
    """One op on one card (or one CPU): nothing is pooled across cards."""

    device: DeviceRecord
    drivers: tuple[str, ...]
    cuda: tuple[str, ...]
    python: tuple[str, ...]
    packages: dict[str, tuple[str, ...]]
    """Versions seen in the measurements that count; more than one is said in the report."""
    providers: dict[str, tuple[str, ...]]
    """Versions of the packages that kernels came from, by provider id."""
    git_shas: tuple[str, ...]
    harness_sha256: tuple[str, ...] = ()
    """Hashes of the harness sources that made the measurements."""
    settings: dict[str, tuple[Setting, ...]]
    comparisons: tuple[Comparison, ...]
    profiler_agreement: Agreement | None
    """With CUPTI, through the torch profiler."""
    do_bench_agreement: Agreement | None
    """With `triton.testing.do_bench`."""
    steps: tuple[StepVerdict, ...]
    tracker: Tracker
    """What this card alone would print."""
    extent: str
    """How many of the deciding steps were measured, and on how many a candidate is faster."""
    notes: tuple[str, ...]


class Won(Record):
    """The request that a row's ✅ end to end rests on."""

    candidate: str
    workload: str
    component: str
    context: str | None
    device_uuid: str
    composition: str


class Cell(Record):
    """One cell of the matrix."""

    symbol: Tracker
    extent: str = ""
    """On how much of what decides the symbol rests; empty where it rests on nothing measured."""
    owner: str | None = None
    link: str | None = None
    """Where the owner shows it."""
    stale: bool = False
    notes: tuple[str, ...] = ()
    """What the evidence says and what it lacks."""
    remark: str = ""
    """What the owner says, signed."""
    won: Won | None = None
    """Of an E2E cell that is ✅."""


class Trackers(Record):
    """The three cells of a row."""

    microbench: Cell
    e2e: Cell
    pr: Cell


class RowVerdict(Record):
    """One row of the matrix."""

    op: str
    title: str
    type: str
    triton_ref: str
    cuda_ref: str
    microbench: Cell
    e2e: Cell
    pr: Cell
    cards: tuple[CardVerdict, ...]
    """CUDA cards, the one that decides the row first."""
    rehearsals: tuple[CardVerdict, ...]
    """CPUs; they never decide."""
    cells: tuple[CellVerdict, ...] = ()
    """End-to-end verdicts, one per component and card; those of a CPU never decide."""
    deciding_models: tuple[str, ...] = ()
    by_device: dict[str, Trackers] = Field(default_factory=dict)
    """By device key of every GPU there is evidence of: the cells that its evidence alone gives."""

    def on(self, device: str) -> "RowVerdict":
        """The row as the evidence of that kind of GPU alone gives it."""
        found = self.by_device[device]
        return self.model_copy(
            update={
                "microbench": found.microbench,
                "e2e": found.e2e,
                "pr": found.pr,
                "cards": tuple(card for card in self.cards if card.device.key == device),
                "cells": tuple(cell for cell in self.cells if cell.device.key == device),
            }
        )


class Verdicts(Record):
    """Everything the reports print."""

    rows: tuple[RowVerdict, ...]
    set_aside: tuple[str, ...]
    """Evidence that no manifest asks for any more, one sentence each."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Keys of the GPUs there is evidence of."""
        return tuple(dict.fromkeys(key for row in self.rows for key in row.by_device))

    def on(self, device: str) -> "Verdicts":
        """What the evidence of that kind of GPU alone gives."""
        return Verdicts(rows=tuple(row.on(device) for row in self.rows), set_aside=())
