"""The closed word lists of the project; every status, kind and symbol is a member of one of these.

None of these modules imports torch: reports and `harness verify` read them on machines that have none.
"""

from enum import StrEnum


class Kind(StrEnum):
    """How a candidate computes its op."""

    NATIVE = "native"
    """The authoritative PyTorch formula, run eagerly."""
    COMPILE = "compile"
    """The same formula under `torch.compile`: the baseline."""
    REWRITE = "rewrite"
    """Another plain-PyTorch form, also under `torch.compile`."""
    TRITON = "triton"
    CUDA = "cuda"


class Contract(StrEnum):
    """The numerical promise a candidate makes."""

    BIT_EXACT = "bit_exact"
    """`torch.equal` to eager native, on every input the guard admits."""
    TOLERANCE = "tolerance"
    """Within the gate's element rule, not to the last bit."""


class Role(StrEnum):
    """What an arm is for in a comparison."""

    BASELINE = "baseline"
    CONTROL = "control"
    """The baseline's own compiled code a second time, captured apart: must tie, or the clock is not to be believed."""
    TWIN = "twin"
    """The baseline's formula with its own code object and its own compile: shows how far two compiles of one formula
    lie apart (Inductor benchmarks its configs, and near-tied winners flip)."""
    CANDIDATE = "candidate"


class ArmStatus(StrEnum):
    """What became of one arm of a measurement; only OK and L2-resident arms carry times that count."""

    OK = "OK"
    INELIGIBLE = "INELIGIBLE"
    """Its guard, or the device, rules it out for this case; the reason says why."""
    NOT_INSTALLED = "NOT_INSTALLED"
    REHEARSED = "REHEARSED"
    """Passed the gate in Triton's interpreter; never timed."""
    GATE_FAILED = "GATE_FAILED"
    FELL_BACK = "FELL_BACK"
    """The kernels it declares were not seen in a profile of the timed callable."""
    FASTER_THAN_MEMORY = "FASTER_THAN_MEMORY"
    """Faster than 1.05 x the copy rate of this run on a case that is not L2-resident: the work was not done."""
    BASELINE_UNCERTIFIED = "BASELINE_UNCERTIFIED"
    """`torch.compile` broke the graph, recompiled, or fell back."""
    BEATEN = "BEATEN"
    """A second baseline, end to end, that a faster one clearly beats: not timed, what holds against that one does."""
    DECIDED = "DECIDED"
    """A candidate, end to end, that the rule has decided by the earlier processes of the sequence: not built again."""
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED_OUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class RunStatus(StrEnum):
    """What became of one measurement (one case, isolated or in one context)."""

    MEASURED = "MEASURED"
    THROTTLED = "THROTTLED"
    """Too many blocks were void for heat, power brake or a foreign process."""
    ENV_UNFIT = "ENV_UNFIT"
    """A control failed: the no-op did not read about 0 or the copy outran the ceiling."""
    BASELINE_UNCERTIFIED = "BASELINE_UNCERTIFIED"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED_OUT"


class Outcome(StrEnum):
    """µbench outcome of one candidate against the baseline; the interval is that of the log-ratio in percent."""

    FASTER = "FASTER"
    """The whole interval is at or above +1 %."""
    TIE = "TIE"
    """The whole interval is inside ±1 %."""
    SLOWER = "SLOWER"
    """The whole interval is at or below -1 %."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The interval straddles a bound."""
    INVALID = "INVALID"
    """No comparison can be made; the reason says why."""
    NOT_RUN = "NOT_RUN"


class Decision(StrEnum):
    """What the rule says of a sequence of processes (`harness.stats.rule`)."""

    WIN = "WIN"
    """The improvement is at least 1 %."""
    NO_WIN = "NO_WIN"
    """The improvement is below 1 %."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The last process allowed has run and neither can be said."""
    CONTINUE = "CONTINUE"
    """Run another process."""


class Doubt(StrEnum):
    """Why a sequence ended INCONCLUSIVE."""

    NOISE = "noise"
    """The interval still reaches no improvement at all, or twice the bar."""
    AT_BAR = "at-bar"
    """The improvement is known to lie between 0 and twice the bar, too near the bar to tell."""
    HETEROGENEOUS = "heterogeneous"
    """The processes disagree more than their noise and tau0 allow."""


class Cache(StrEnum):
    """Whether the L2 (last-level cache on a CPU) holds the inputs when a launch starts."""

    COLD = "cold"
    """At least 5 x L2 of distinct bytes rotate through one sample; the count is asserted."""
    WARM = "warm"


class Method(StrEnum):
    """How a sample is timed; one method per comparison."""

    CUDA_GRAPH = "cuda_graph"
    """Events around one replay of a captured graph of launches, queued behind a blocking kernel."""
    EVENTS = "events"
    """Events around a queue of launches held back by a blocking kernel; used when some arm cannot be captured."""
    WALL = "wall"
    """`time.perf_counter_ns` around launches, CPU only."""


class Tracker(StrEnum):
    """The RFC's cell symbols."""

    UNCLAIMED = "🙋"
    IN_PROGRESS = "⏳"
    POSITIVE = "✅"
    NEGATIVE = "❌"
    NO_CANDIDATE = "—"
