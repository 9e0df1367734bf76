"""What deciding makes of end-to-end processes: cells and compositions. Computed, never stored by hand.

Gains are percent of the baseline's time saved, positive when the candidate is faster; intervals are the rule's own at
the look that decided (2.5 % per side over all looks).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from harness.schema.figures import Evidence, RankFigures, Span
from harness.schema.measurement import DeviceRecord, Record, Setting, is_none
from harness.schema.process import CallsRecord, ModelRole, QualityRecord
from harness.schema.vocabulary import Contract, Doubt, Kind


class Verdict(StrEnum):
    """The only status words of an end-to-end comparison."""

    WIN = "WIN"
    """The gain is at least 1 %."""
    NO_WIN = "NO_WIN"
    """The gain is below 1 %."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The processes allowed have run and neither can be said."""
    INVALID = "INVALID"
    """No comparison can be made; the reason says why."""
    NOT_RUN = "NOT_RUN"


class Tier(StrEnum):
    """Quality tier of a candidate, as serving frameworks admit them."""

    LOSSLESS = "lossless"
    """Every output bit is native's."""
    EXTRA_HIGH = "extra-high"
    """Error against fp32 at most 1.1 x native's own."""
    HIGH = "high"
    """Error against fp32 at most 1.5 x native's own."""


class Figures(Record):
    """What the rule says of one sequence of log-ratios."""

    verdict: Verdict
    regression: bool
    """NO_WIN, and even the upper limit is a slowdown."""
    doubt: Doubt | None
    more_processes: int | None
    """When INCONCLUSIVE: so many more processes would settle it if the estimate stayed."""
    gain_pct: Span
    processes: int
    pairs: tuple[int, ...]
    tau_hat_log_pct: float | None
    q_p_value: float
    win_p_value: float
    no_win_p_value: float


class ModelArmVerdict(Record):
    """One arm of a cell, judged on its component."""

    id: str
    role: ModelRole
    kind: Kind
    contract: Contract
    provider_version: str | None
    verdict: Verdict
    reason: str = ""
    """Why INVALID or NOT_RUN; empty otherwise."""
    to_static: Figures | None = None
    to_dynamic: Figures | None = None
    gain_pct: Span | None = None
    """Against the faster of the two baselines."""
    share_of_possible: float | None = None
    """Gain over what a kernel can give: the ceiling less the op's roofline."""
    tier: Tier | None = None
    quality: QualityRecord | None = None
    shadow_max_ulp: int | None = None
    calls: CallsRecord | None = None
    compile_s: tuple[float, ...] = ()
    peak_bytes: int = 0
    graph_count: int | None = None
    time_ms: Span | None = None


class CompositionVerdict(Record):
    """One candidate in one serving request."""

    id: str
    what: str
    excluded: str
    fixed_ms: float
    """Time of the parts that do not change, measured elsewhere on the same device."""
    share: float
    """The changed component's share of the request's time."""
    figures: Figures


class CellVerdict(Record):
    """One op in one component of one workload on one card."""

    op: str
    context: str | None = None
    """Of the wiring: the op together with its neighbours, or alone."""
    workload: str
    title: str
    component: str
    what: str
    device: DeviceRecord
    library: str
    versions: dict[str, str]
    checkpoint: str | None
    attention_backend: str
    sequence: str
    settings: dict[str, Setting] = Field(default_factory=dict)
    git_sha: str | None = None
    e2e_sha256: str = ""
    """Hash of the harness sources of this stage that ran."""
    started_at: str = ""
    """Of the last process; UTC, ISO 8601."""
    evidence: tuple[Evidence, ...]
    stale: tuple[str, ...]
    p_max: int | None
    baseline_ms: Span
    dynamic_over_static: float | None
    """Time of the dynamic baseline over the static one's."""
    dynamic_left_out: str = ""
    """Why there is none and the verdicts are against the static one alone: the figures by which it was beaten."""
    twin: ModelArmVerdict | None
    ceiling_pct: Span | None
    """What leaving the op out gains: one process."""
    opaque_pct: Span | None
    """What native behind a custom op gains; negative is the price of the lost fusion."""
    roofline_pct: float | None
    """Share of the component's time that the op's bytes cost at copy speed."""
    positive: Figures | None
    """The baseline against itself slowed by a known share; None where that was not asked for."""
    slowdown_pct: float
    """That share."""
    finished: bool
    """Whether its sequence ended by the rule or at the declared number of processes."""
    candidates: tuple[ModelArmVerdict, ...]
    leader: str | None
    """Candidate with the largest gain that is not INVALID."""
    verdict: Verdict
    """The leader's, on the component; INVALID where that is NO_WIN and another candidate is INVALID: it may yet win."""
    reason: str
    """Why there is no verdict from times; empty when there is one."""
    closed_by_ceiling: bool
    """Even the ceiling's upper limit is under the bar: nothing can win here."""
    compositions: tuple[CompositionVerdict, ...]
    """The leader's, on each request whose parts are all measured."""
    unmeasured_parts: tuple[str, ...]
    """Components of the workload's requests that have no time on this card yet."""
    own_parts: tuple[str, ...]
    """Other components of the same model that a request is made of; the model is tested when they are too."""
    share_table: tuple[tuple[float, float], ...]
    """Where a request has unmeasured parts: the component's share of a request in percent, against the request's
    gain in percent."""
    ranks: Annotated[RankFigures | None, Field(exclude_if=is_none)] = None
    """For a model split over ranks; `device` is the first one's."""

    @property
    def wired_in(self) -> str:
        """The model, and the context where the op is wired together with its neighbours."""
        return self.title if self.context is None else f"{self.title}, {self.context}"
