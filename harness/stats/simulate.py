"""The rule's own error rates: noise models, and the rule run as written on many simulated sequences.

An effect is injected, so the truth is known. Because every estimate moves with an effect and no spread does, one set
of noise serves all effects.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import signal

from harness.stats.estimators import hodges_lehmann, trimmed_se
from harness.stats.rule import (
    MAX_PAIRS,
    MIN_PAIRS,
    PILOT_PAIRS,
    Budget,
    RuleSettings,
    look,
    pairs_per_process,
    processes_in_budget,
)
from harness.stats.units import BoolArray, FloatArray, IntArray, log_percent

CHUNK = 2000
"""Processes estimated at once; bounds the memory of their Walsh averages."""


class Noise(StrEnum):
    """How the times of consecutive runs of one process scatter around their level."""

    GAUSSIAN_02 = "Gaussian 0.2 %"
    GAUSSIAN_05 = "Gaussian 0.5 %"
    GAUSSIAN_1 = "Gaussian 1 %"
    GAUSSIAN_2 = "Gaussian 2 %"
    HEAVY = "heavy-tailed"
    """Gaussian 0.3 %, and one run in twelve is late by an exponential delay of mean 3 %."""
    AR1 = "AR(1)"
    """Autoregressive, phi 0.95, stationary sd 1 %, with 0.2 % of white noise."""
    DRIFT = "warm-up drift"
    """Slower by 1.5-4.5 % within 8-25 runs, then creeping on by up to 0.02 % a run; 0.3 % of white noise."""
    STEP = "throttle steps"
    """6 % slower a quarter of the time, in spells of 20 runs; 0.3 % of white noise."""
    BIMODAL = "bimodal"
    """3 runs in 10 are 2 % slower; 0.2 % of white noise."""


class Spread(StrEnum):
    """How processes differ from each other."""

    NONE = "τ = 0"
    TAU_015 = "τ = 0.15 %"
    TAU_03 = "τ = 0.3 %"
    LOTTERY = "compile lottery"
    """The baseline is 0.8 % slower in 3 starts of 10; centred, so that the effect stays the mean."""


def _gaussian(sd_pct: float) -> Callable[[np.random.Generator, int, int], FloatArray]:
    return lambda rng, rows, runs: rng.normal(0, sd_pct, (rows, runs))


def _heavy(rng: np.random.Generator, rows: int, runs: int) -> FloatArray:
    late = rng.random((rows, runs)) < 1 / 12
    return rng.normal(0, 0.3, (rows, runs)) + np.where(late, rng.exponential(3.0, (rows, runs)), 0.0)


def _ar1(rng: np.random.Generator, rows: int, runs: int) -> FloatArray:
    phi = 0.95
    innovations = rng.normal(0, np.sqrt(1 - phi**2), (rows, runs))
    start = phi * rng.normal(0, 1, (rows, 1))
    series, _ = signal.lfilter([1.0], [1.0, -phi], innovations, axis=1, zi=start)
    return np.asarray(series + rng.normal(0, 0.2, (rows, runs)))


def _drift(rng: np.random.Generator, rows: int, runs: int) -> FloatArray:
    run = np.arange(runs)
    height, pace, creep = (rng.uniform(low, high, (rows, 1)) for low, high in ((1.5, 4.5), (8.0, 25.0), (0.0, 0.02)))
    return np.asarray(-height * np.expm1(-run / pace) + creep * run + rng.normal(0, 0.3, (rows, runs)))


def _step(rng: np.random.Generator, rows: int, runs: int) -> FloatArray:
    leave, share = 1 / 20, 0.25
    enter = leave * share / (1 - share)
    slow = np.empty((rows, runs), dtype=np.bool_)
    slow[:, 0] = rng.random(rows) < share
    for run in range(1, runs):
        change = rng.random(rows) < np.where(slow[:, run - 1], leave, enter)
        slow[:, run] = slow[:, run - 1] ^ change
    return np.asarray(6.0 * slow + rng.normal(0, 0.3, (rows, runs)))


def _bimodal(rng: np.random.Generator, rows: int, runs: int) -> FloatArray:
    return 2.0 * (rng.random((rows, runs)) < 0.3) + rng.normal(0, 0.2, (rows, runs))


_NOISE: dict[Noise, Callable[[np.random.Generator, int, int], FloatArray]] = {
    Noise.GAUSSIAN_02: _gaussian(0.2),
    Noise.GAUSSIAN_05: _gaussian(0.5),
    Noise.GAUSSIAN_1: _gaussian(1.0),
    Noise.GAUSSIAN_2: _gaussian(2.0),
    Noise.HEAVY: _heavy,
    Noise.AR1: _ar1,
    Noise.DRIFT: _drift,
    Noise.STEP: _step,
    Noise.BIMODAL: _bimodal,
}


def run_noise(noise: Noise, rows: int, runs: int, rng: np.random.Generator) -> FloatArray:
    """Log-percent by which each of `runs` consecutive runs is slow, in `rows` processes: shape (rows, runs)."""
    return _NOISE[noise](rng, rows, runs)


def process_spread(spread: Spread, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray:
    """What each process adds to the log-ratio, log-percent, mean zero."""
    if spread is Spread.LOTTERY:
        return np.asarray(0.8 * ((rng.random(shape) < 0.3) - 0.3), dtype=np.float64)
    sd = {Spread.NONE: 0.0, Spread.TAU_015: 0.15, Spread.TAU_03: 0.3}[spread]
    return rng.normal(0, 1, shape) * sd


def paired_noise(noise: Noise, rows: int, pairs: int, rng: np.random.Generator) -> FloatArray:
    """Log-ratios of A/A pairs run in random ABBA/BAAB blocks, shape (rows, pairs), log-percent; `pairs` is even."""
    times = run_noise(noise, rows, 2 * pairs, rng).reshape(rows, pairs // 2, 2, 2)
    first_minus_second = times[..., 0] - times[..., 1]
    abba = np.where(rng.random((rows, pairs // 2, 1)) < 0.5, 1.0, -1.0)
    return np.asarray((abba * np.array([1.0, -1.0]) * first_minus_second).reshape(rows, pairs))


TIER_300 = Budget(total_s=300, start_s=40, pair_s=4)
"""The 300 s tier of a model with 2 s runs that takes 40 s to start."""
TIER_600 = Budget(total_s=600, start_s=40, pair_s=4)


@dataclass(frozen=True)
class Sequences:
    """R sequences of P processes each, as the rule would have run them; no effect yet. Log-percent."""

    x: FloatArray
    """Estimates, shape (R, P)."""
    se: FloatArray
    pairs: IntArray
    """K of each sequence, shape (R,)."""
    p_max: IntArray
    process_s: FloatArray
    """Seconds per process, shape (R,)."""


@dataclass(frozen=True)
class Rates:
    """What the rule said, percent of sequences, and what it cost."""

    win: float
    no_win: float
    inconclusive: float
    processes: float
    """Mean number of processes run."""
    seconds: float


def simulate_sequences(
    noise: Noise, budget: Budget, replicates: int, rng: np.random.Generator, settings: RuleSettings
) -> Sequences:
    """Sequences of A/A processes with the given run noise and no spread between processes.

    K comes from the first six pairs of process 1 and P_max from K, as the rule prescribes.
    """
    most = int(processes_in_budget(MIN_PAIRS, budget))
    x, se = np.empty((replicates, most)), np.empty((replicates, most))
    pairs = np.empty(replicates, dtype=np.int64)
    step = max(1, CHUNK // most)
    for start in range(0, replicates, step):
        rows = slice(start, min(replicates, start + step))
        d = paired_noise(noise, (rows.stop - rows.start) * most, MAX_PAIRS, rng).reshape(-1, most, MAX_PAIRS)
        pairs[rows] = pairs_per_process(d[:, 0, :PILOT_PAIRS], budget, settings)
        for k in np.unique(pairs[rows]):
            chosen = pairs[rows] == k
            x[rows][chosen] = hodges_lehmann(d[chosen, :, :k])
            se[rows][chosen] = trimmed_se(d[chosen, :, :k])[0]
    return Sequences(x, se, pairs, processes_in_budget(pairs, budget), process_seconds(pairs, budget))


def process_seconds(pairs: IntArray, budget: Budget) -> FloatArray:
    """What one process of K pairs costs, seconds."""
    return np.asarray(budget.start_s + pairs * budget.pair_s, dtype=np.float64)


def rule_rates(
    sequences: Sequences, effect_pct: float, settings: RuleSettings, spread: FloatArray | None = None
) -> Rates:
    """Run the rule on every sequence with a true improvement of `effect_pct` percent injected into one arm.

    `spread` is what each process adds to its log-ratio (see `process_spread`), shape (R, P).
    """
    x = sequences.x + log_percent(effect_pct)
    if spread is not None:
        x = x + spread
    win, no_win, stopped_at = run_rule(x, sequences, settings)
    return Rates(
        win=100 * float(win.mean()),
        no_win=100 * float(no_win.mean()),
        inconclusive=100 * float((~(win | no_win)).mean()),
        processes=float(stopped_at.mean()),
        seconds=float((stopped_at * sequences.process_s).mean()),
    )


def run_rule(x: FloatArray, sequences: Sequences, settings: RuleSettings) -> tuple[BoolArray, BoolArray, IntArray]:
    """Look after every process until each sequence decides or ends: which said WIN, which NO_WIN, after how many."""
    rows = len(x)
    win, no_win = np.zeros(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
    stopped_at = sequences.p_max.copy()
    running = np.arange(rows)
    for n in range(1, x.shape[1] + 1):
        running = running[sequences.p_max[running] >= n]
        pairs = np.repeat(sequences.pairs[running, None], n, axis=1)
        seen = look(x[running, :n], sequences.se[running, :n], pairs, sequences.p_max[running], settings)
        win[running], no_win[running] = seen.win, seen.no_win
        decided = seen.win | seen.no_win
        stopped_at[running[decided]] = n
        running = running[~decided]
    return win, no_win, stopped_at
