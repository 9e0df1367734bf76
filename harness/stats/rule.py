"""The three-way rule: processes in, WIN, NO_WIN, INCONCLUSIVE or CONTINUE out.

A process is one fresh start of the program with both arms built and timed in ABBA/BAAB blocks. After process n, with
x_p the Hodges-Lehmann estimate and v_p the squared standard error of process p (log-percent):

    v~_p = (df_p v_p + 4 mean(v)) / (df_p + 4),  df_p = 0.6 K_p - 1         within-process variances, stabilised
    w_p  = 1 / (tau0² + v~_p),  m = sum w x / sum w,  Q = sum w (x - m)²
    SE²  = [(nu0 + Q) / (nu0 + n - 1)] / sum w                              moderated Hartung-Knapp
    L, U = m -+ t(nu0 + n - 1, nominal level of the look) SE

    WIN     if n >= P_WIN  and L >= bar and the processes agree: P(chi²(n-1) > Q) >= 0.01
    NO_WIN  if n >= P_LOSS and U < bar;  a regression if U < 0
    INCONCLUSIVE if n = P_max, else CONTINUE

The nominal levels (`harness.stats.levels`) make all looks together err at 2.5 % per side. Hartung and Knapp 2001 for
the variance of a weighted mean; Smyth 2004 for its moderation by a prior worth nu0 processes.

`look` is the rule itself, on arrays; the simulations and `decide` both go through it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.schema.vocabulary import Decision, Doubt
from harness.stats.distributions import chi2_upper, t_lower, t_quantiles, t_upper
from harness.stats.estimators import hodges_lehmann, trimmed_se
from harness.stats.levels import MAX_PROCESSES, NU0, family_p_value, nominal_levels
from harness.stats.units import BAR_LOG_PCT, BoolArray, FloatArray, IntArray, improvement_percent

P_CAP = 8
"""Most processes of one budgeted sequence."""
P_WIN = 3
"""First look that may say WIN: two cold compiles are among three processes."""
Q_GUARD = 0.01
"""No WIN while the processes disagree more than this probability allows."""
PILOT_PAIRS = 6
MIN_PAIRS, MAX_PAIRS = 6, 24
DEFAULT_TAU0_LOG_PCT = 0.20


@dataclass(frozen=True)
class RuleSettings:
    """What may differ between machines; everything else is a constant of the rule."""

    tau0_log_pct: float = DEFAULT_TAU0_LOG_PCT
    """Standard deviation between processes: a guess until the registry has enough cells."""
    p_loss: int = 2
    """First look that may say NO_WIN: 2, or 1 once tau0 comes from the registry."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tau0_log_pct) and self.tau0_log_pct >= 0):
            raise ValueError(f"tau0 must be a finite number of log-percent, 0 or more, got {self.tau0_log_pct}")
        if self.p_loss not in (1, 2):
            raise ValueError(f"p_loss must be 1 or 2, got {self.p_loss}")


@dataclass(frozen=True)
class Budget:
    """Time one comparison may take, and what its parts cost, seconds, all above zero."""

    total_s: float
    start_s: float
    """C0: starting a process and building both arms."""
    pair_s: float
    """c_pair: one run of each arm."""

    def __post_init__(self) -> None:
        if not min(self.total_s, self.start_s, self.pair_s) > 0:
            raise ValueError(f"a budget and its costs must be above zero, got {self}")


@dataclass(frozen=True)
class Look:
    """One look at many sequences at once; every array has one entry per sequence. Log-percent."""

    mean: FloatArray
    se: FloatArray
    df: int
    lower: FloatArray
    upper: FloatArray
    q_p_value: FloatArray
    win: BoolArray
    no_win: BoolArray


@dataclass(frozen=True)
class Ruling:
    """What the rule says of one sequence of processes, with the figures behind it."""

    decision: Decision
    regression: bool
    """NO_WIN, and even the upper limit is a slowdown."""
    doubt: Doubt | None
    """Set when INCONCLUSIVE."""
    more_processes: int | None
    """When INCONCLUSIVE: how many more processes like these would settle it if the estimate stayed; None where more of
    the same would not, or not within `MAX_PROCESSES`."""
    n: int
    """Processes looked at: the sequence stops at the first look that decides."""
    p_max: int
    pairs: tuple[int, ...]
    """Pairs of each of the n processes."""
    process_log_pct: tuple[float, ...]
    """Estimate of each process."""
    process_se_log_pct: tuple[float, ...]
    mean_log_pct: float
    lower_log_pct: float
    upper_log_pct: float
    gain_pct: float
    """Improvement in percent of the baseline's time, with its limits."""
    gain_lower_pct: float
    gain_upper_pct: float
    tau_hat_log_pct: float | None
    """DerSimonian-Laird estimate of the standard deviation between processes; None for one process."""
    q_p_value: float
    win_p_value: float
    """One-sided p-value of "the improvement is at most 1 %", over all looks; the one to give to `holm`."""
    no_win_p_value: float
    """One-sided p-value of "the improvement is at least 1 %", over all looks."""


def pairs_per_process(pilot: FloatArray, budget: Budget, settings: RuleSettings) -> IntArray:
    """K, the pairs to run in every process, from the first six log-ratios of process 1: shape (..., 6) to (...).

    K = sqrt(C0 / c_pair) sd / tau0, the two-level optimum of Kalibera and Jones 2013, rounded up to even, at least 6
    and at most 24 or what lets P_WIN processes fit into the budget. Only the spread of the log-ratios is used, never
    their level: choosing K by the effect would break the error rates. Raises ValueError unless there are six.
    """
    if pilot.shape[-1] != PILOT_PAIRS:
        raise ValueError(f"the pilot is the first {PILOT_PAIRS} pairs, got {pilot.shape[-1]}")
    sd = trimmed_se(pilot)[0] * math.sqrt(PILOT_PAIRS)
    affordable = 2 * int((budget.total_s / P_WIN - budget.start_s) / budget.pair_s / 2)
    most = max(MIN_PAIRS, min(MAX_PAIRS, affordable))
    wanted = math.sqrt(budget.start_s / budget.pair_s) * sd / max(settings.tau0_log_pct, 1e-9)
    return np.asarray(np.clip(2 * np.ceil(wanted / 2), MIN_PAIRS, most).astype(np.int64))


def processes_in_budget(pairs: npt.ArrayLike, budget: Budget) -> IntArray:
    """P_max = min(8, floor(B / (C0 + K c_pair))), at least 1; to be fixed before process 2 starts."""
    fitting = budget.total_s / (budget.start_s + np.asarray(pairs) * budget.pair_s)
    return np.asarray(np.clip(np.floor(fitting + 1e-9), 1, P_CAP).astype(np.int64))


@lru_cache(maxsize=256)
def _t_quantiles(first_look: int, df: int) -> FloatArray:
    return t_quantiles(nominal_levels(first_look), df)


def look(x: FloatArray, se: FloatArray, pairs: IntArray, p_max: IntArray, settings: RuleSettings) -> Look:
    """Look at R sequences after n processes each.

    `x` and `se`: process estimates and their standard errors, shape (R, n), log-percent. `pairs`: K of each process,
    shape (R, n). `p_max`: shape (R,).
    """
    n = x.shape[1]
    variances, dof = se**2, 0.6 * pairs - 1
    stabilised = (dof * variances + 4 * variances.mean(axis=1, keepdims=True)) / (dof + 4)
    weights = 1 / (settings.tau0_log_pct**2 + stabilised)
    information = weights.sum(axis=1)
    mean = (weights * x).sum(axis=1) / information
    q = (weights * (x - mean[:, None]) ** 2).sum(axis=1)
    df = NU0 + n - 1
    error = np.sqrt((NU0 + q) / df / information)
    lower = mean - _t_quantiles(P_WIN, df)[p_max] * error
    upper = mean + _t_quantiles(settings.p_loss, df)[p_max] * error
    q_p_value = chi2_upper(q, n - 1) if n > 1 else np.ones_like(q)
    return Look(
        mean=mean,
        se=error,
        df=df,
        lower=lower,
        upper=upper,
        q_p_value=q_p_value,
        win=(lower >= BAR_LOG_PCT) & (q_p_value >= Q_GUARD) & (n >= P_WIN),
        no_win=(upper < BAR_LOG_PCT) & (n >= settings.p_loss),
    )


def decide(processes: Sequence[FloatArray], p_max: int, settings: RuleSettings) -> Ruling:
    """The ruling on a sequence of processes in the order they ran; call it after every process with all so far.

    `processes[p]`: the K paired log-ratios of process p in log-percent (`log_ratios` of baseline over candidate). The
    looks are replayed from the first one on, so processes after the look that decided change nothing. Raises
    ValueError when there are none, more than `p_max`, or values that are not finite.
    """
    if not 1 <= p_max <= MAX_PROCESSES:
        raise ValueError(f"p_max must lie between 1 and {MAX_PROCESSES}, got {p_max}")
    if not 1 <= len(processes) <= p_max:
        raise ValueError(f"a sequence declared for {p_max} processes was given {len(processes)}")
    if not all(np.isfinite(d).all() for d in processes):
        raise ValueError("log-ratios must be finite")
    x = np.array([[float(hodges_lehmann(d)) for d in processes]])
    se = np.array([[float(trimmed_se(d)[0]) for d in processes]])
    pairs = np.array([[len(d) for d in processes]])
    limit = np.array([p_max])
    for n in range(1, len(processes) + 1):
        seen = look(x[:, :n], se[:, :n], pairs[:, :n], limit, settings)
        if seen.win[0] or seen.no_win[0]:
            break
    return _ruling(seen, x[0, :n], se[0, :n], pairs[0, :n], p_max, settings)


def _ruling(seen: Look, x: FloatArray, se: FloatArray, pairs: IntArray, p_max: int, settings: RuleSettings) -> Ruling:
    n = len(x)
    mean, error = float(seen.mean[0]), float(seen.se[0])
    lower, upper, q_p_value = float(seen.lower[0]), float(seen.upper[0]), float(seen.q_p_value[0])
    if seen.win[0]:
        decision = Decision.WIN
    elif seen.no_win[0]:
        decision = Decision.NO_WIN
    else:
        decision = Decision.INCONCLUSIVE if n == p_max else Decision.CONTINUE
    doubt = more = None
    if decision is Decision.INCONCLUSIVE:
        if q_p_value < Q_GUARD:
            doubt = Doubt.HETEROGENEOUS
        else:
            doubt = Doubt.AT_BAR if lower > 0 and upper < 2 * BAR_LOG_PCT else Doubt.NOISE
        if doubt is not Doubt.HETEROGENEOUS or mean < BAR_LOG_PCT:
            more = _more_processes(mean, error, n, settings)
    z = (mean - BAR_LOG_PCT) / error
    return Ruling(
        decision=decision,
        regression=decision is Decision.NO_WIN and upper < 0,
        doubt=doubt,
        more_processes=more,
        n=n,
        p_max=p_max,
        pairs=tuple(int(k) for k in pairs),
        process_log_pct=tuple(float(value) for value in x),
        process_se_log_pct=tuple(float(value) for value in se),
        mean_log_pct=mean,
        lower_log_pct=lower,
        upper_log_pct=upper,
        gain_pct=improvement_percent(mean),
        gain_lower_pct=improvement_percent(lower),
        gain_upper_pct=improvement_percent(upper),
        tau_hat_log_pct=between_process_sd(x, se) if n > 1 else None,
        q_p_value=q_p_value,
        win_p_value=family_p_value(float(t_upper(z, seen.df)), P_WIN, p_max) if n >= P_WIN else 1.0,
        no_win_p_value=family_p_value(float(t_lower(z, seen.df)), settings.p_loss, p_max)
        if n >= settings.p_loss
        else 1.0,
    )


def _more_processes(mean: float, error: float, n: int, settings: RuleSettings) -> int | None:
    """Fewest further processes after which the rule, with a P_max declared for them, would decide at this mean."""
    first_look = P_WIN if mean >= BAR_LOG_PCT else settings.p_loss
    for total in range(max(n + 1, first_look), MAX_PROCESSES + 1):
        half_width = _t_quantiles(first_look, NU0 + total - 1)[total] * error * math.sqrt(n / total)
        if half_width < abs(mean - BAR_LOG_PCT):
            return total - n
    return None


def between_process_sd(x: FloatArray, se: FloatArray) -> float:
    """Standard deviation between processes by DerSimonian and Laird 1986, log-percent; needs two or more processes."""
    weights = 1 / se**2
    total = weights.sum()
    q = (weights * (x - (weights * x).sum() / total) ** 2).sum()
    return math.sqrt(max(0.0, (q - (len(x) - 1)) / (total - (weights**2).sum() / total)))
