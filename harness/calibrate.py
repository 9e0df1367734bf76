"""`python -m harness.calibrate`: re-simulates the three-way rule as written and writes reports/calibration.md.

Nine noise models, four spreads between processes, two budgets, and real A/A processes with effects injected. The same
seed, numpy and traces give the same file, byte for byte.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from harness.errors import ExitCode, UserError
from harness.stats.aa import mean_interval
from harness.stats.estimators import hodges_lehmann, trimmed_se
from harness.stats.levels import FAMILY_LEVEL, nominal_levels
from harness.stats.rule import P_CAP, P_WIN, Q_GUARD, Budget, RuleSettings, between_process_sd
from harness.stats.simulate import (
    TIER_300,
    TIER_600,
    Noise,
    Rates,
    Spread,
    process_spread,
    rule_rates,
    simulate_sequences,
)
from harness.stats.traces import Trace, resample

EFFECTS_PCT = (0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0)
TRACE_EFFECTS_PCT = (0.0, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 10.0)
TIERS = (TIER_300, TIER_600)
DEFAULT, EARLY = RuleSettings(), RuleSettings(p_loss=1)
WRONG_TAU = (0.4, 0.6, 1.0)
ERROR_LIMIT_PCT = 3.0
NO_WIN_POWER_PCT, WIN_POWER_PCT = 85.0, 90.0
TRACES = {
    "h200_wan1.3b": ("H200, one step of Wan 1.3B", (None, 8)),
    "cpu_quiet": ("2 CPU cores, raised priority", (None, 40)),
    "cpu_contended": ("2 CPU cores, contended", (None, 40)),
}
"""Stored processes, what they are, and the pairs per process tried: None is the rule's own choice."""

Simulated = dict[tuple[Budget, RuleSettings, Noise, Spread, float], Rates]


def load_traces(path: Path) -> list[Trace]:
    """The stored A/A processes of one file, one JSON object a line; raises UserError naming the line that is wrong."""
    if not path.is_file():
        raise UserError(f"{path}: there are no stored A/A processes; give their folder with --traces.")
    traces = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            traces.append(Trace(row["order"], np.array(row["ms"], dtype=np.float64), float(row["start_s"])))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}:{number}: not a stored A/A process ({error}); see the README there.") from error
    return traces


def simulate(replicates: int, seed: int, console: Console) -> Simulated:
    """Rates of every budget, noise, spread and effect, with NO_WIN from the second process on and from the first."""
    found: Simulated = {}
    plan = [(tier, noise) for tier in TIERS for noise in Noise]
    for tier, noise in track(plan, description="simulating", console=console):
        rng = np.random.default_rng([seed, TIERS.index(tier), list(Noise).index(noise)])
        sequences = simulate_sequences(noise, tier, replicates, rng, DEFAULT)
        for spread in Spread:
            drawn = process_spread(spread, sequences.x.shape, rng)
            for effect in EFFECTS_PCT:
                for settings in (DEFAULT, EARLY):
                    found[tier, settings, noise, spread, effect] = rule_rates(sequences, effect, settings, drawn)
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def said(rates: Rates) -> str:
    """WIN / NO_WIN / INCONCLUSIVE, percent."""
    return f"{rates.win:.1f} / {rates.no_win:.1f} / {rates.inconclusive:.1f}"


def goals(found: Simulated) -> str:
    """What the rule must reach at the 300 s tier and tau = 0.15 %, and what it reaches."""

    def at(noise: Noise, effect: float) -> Rates:
        return found[TIER_300, DEFAULT, noise, Spread.TAU_015, effect]

    false_win = {noise: at(noise, 0.9).win for noise in Noise}
    false_no_win = {noise: at(noise, 1.1).no_win for noise in Noise}
    no_win = float(np.mean([at(noise, 0.0).no_win for noise in Noise]))
    win = float(np.mean([at(noise, 2.0).win for noise in Noise]))
    rows = []
    for what, by_noise in (("false WIN at a true 0.9 %", false_win), ("false NO_WIN at a true 1.1 %", false_no_win)):
        worst = max(by_noise, key=lambda noise: by_noise[noise])
        met = by_noise[worst] <= ERROR_LIMIT_PCT
        reached = f"{by_noise[worst]:.2f} % ({worst})"
        rows.append([f"{what}, worst noise model", f"≤ {ERROR_LIMIT_PCT:g} %", reached, "yes" if met else "**no**"])
    for what, power, goal in (("NO_WIN at 0 %", no_win, NO_WIN_POWER_PCT), ("WIN at 2 %", win, WIN_POWER_PCT)):
        rows.append([f"{what}, mean", f"≥ {goal:g} %", f"{power:.1f} %", "yes" if power >= goal else "**no**"])
    return table(["goal", "limit", "reached", "met"], rows)


def mean_over_noise(found: Simulated) -> str:
    """Means over the nine noise models at tau = 0.15 %."""
    rows = []
    for tier in TIERS:
        cells = [[found[tier, DEFAULT, noise, Spread.TAU_015, effect] for noise in Noise] for effect in EFFECTS_PCT]
        means = [Rates(*np.mean([list(vars(rates).values()) for rates in column], axis=0)) for column in cells]
        rows.append([f"{tier.total_s:g} s", *(said(mean) for mean in means)])
        rows.append(["mean s (processes)", *(f"{mean.seconds:.0f} ({mean.processes:.1f})" for mean in means)])
    return table(["true effect", *(f"{effect:g} %" for effect in EFFECTS_PCT)], rows)


def worst_cells(found: Simulated) -> str:
    """The worst of the 36 cells, for NO_WIN from the second process on (the default) and from the first."""
    columns: list[tuple[str, float, Callable[[Rates], float]]] = [
        *((f"WIN at {effect:g} %", effect, lambda rates: rates.win) for effect in (0.0, 0.5, 0.9)),
        *((f"NO_WIN at {effect:g} %", effect, lambda rates: rates.no_win) for effect in (1.0, 1.1, 1.5, 2.0)),
    ]
    rows = []
    for tier in TIERS:
        for settings in (DEFAULT, EARLY):
            row = [f"{tier.total_s:g} s, P_LOSS = {settings.p_loss}"]
            for _, effect, error in columns:
                cells = {(n, s): error(found[tier, settings, n, s, effect]) for n in Noise for s in Spread}
                noise, spread = max(cells, key=lambda cell: cells[cell])
                worst = cells[noise, spread]
                row.append(f"{worst:.2f} ({noise}, {spread})" if worst > 0 else "0.00")
            rows.append(row)
    return table(["worst of 36", *(name for name, _, _ in columns)], rows)


def every_cell(found: Simulated, tier: Budget) -> str:
    """All noise models and spreads of one budget."""
    return table(
        ["run noise", "processes", *(f"{effect:g} %" for effect in EFFECTS_PCT)],
        [
            [noise, spread, *(said(found[tier, DEFAULT, noise, spread, effect]) for effect in EFFECTS_PCT)]
            for noise in Noise
            for spread in Spread
        ],
    )


def wrong_tau(replicates: int, seed: int) -> str:
    """What happens when processes differ by more than tau0."""
    rng = np.random.default_rng([seed, len(TIERS)])
    sequences = simulate_sequences(Noise.GAUSSIAN_05, TIER_300, replicates, rng, DEFAULT)
    rows = []
    for tau in WRONG_TAU:
        spread = rng.normal(0, tau, sequences.x.shape)
        for settings in (DEFAULT, EARLY):
            near = [rule_rates(sequences, effect, settings, spread) for effect in (0.0, 0.9, 1.0, 1.1, 2.0)]
            rows.append([f"{tau:g} %", str(settings.p_loss), *(said(rates) for rates in near)])
    return table(["true τ", "P_LOSS", "0 %", "0.9 %", "1 %", "1.1 %", "2 %"], rows)


def real_processes(folder: Path, replicates: int, seed: int, console: Console) -> str:
    """The stored A/A processes, described, and the rule's rates on them."""
    facts, rows = [], []
    for index, (name, (what, tried)) in enumerate(track(TRACES.items(), description="resampling", console=console)):
        traces = load_traces(folder / f"{name}.jsonl")
        d = [trace.log_ratios for trace in traces]
        x = np.array([float(hodges_lehmann(one)) for one in d])
        se = np.array([float(trimmed_se(one)[0]) for one in d])
        mean = mean_interval(x)
        facts.append(
            [
                what,
                str(len(traces)),
                f"{np.median([one.std(ddof=1) for one in d]):.2f}",
                f"{np.median(se):.2f}",
                f"{mean.estimate:+.2f} [{mean.lower:+.2f}, {mean.upper:+.2f}]",
                f"{between_process_sd(x, se):.2f}",
            ]
        )
        for pairs in tried:
            rng = np.random.default_rng([seed, len(TIERS) + 1, index, pairs or 0])
            sequences = resample(traces, TIER_300.total_s, replicates, rng, DEFAULT, pairs)
            by_effect = [rule_rates(sequences, effect, DEFAULT) for effect in TRACE_EFFECTS_PCT]
            k = f"{pairs}, fixed" if pairs else f"{sequences.pairs.mean():.1f}, by the rule"
            rows.append([what, k, *(f"{said(rates)} ({rates.processes:.1f})" for rates in by_effect)])
    described = table(
        ["stored A/A", "processes", "pair sd", "SE of a process", "A/A mean [90 %]", "τ (DerSimonian-Laird)"], facts
    )
    return described + "\n" + table(["stored A/A", "K", *(f"{effect:g} %" for effect in TRACE_EFFECTS_PCT)], rows)


def levels() -> str:
    """The nominal level of every look."""
    ends = range(1, P_CAP + 1)
    rows = [
        [f"{what}, looks from {first}", *(f"{nominal_levels(first)[end]:.4f}" if end >= first else "-" for end in ends)]
        for what, first in (("NO_WIN", 1), ("NO_WIN", 2), ("WIN", P_WIN))
    ]
    return table(["P_max", *(str(end) for end in ends)], rows)


def report(folder: Path, replicates: int, seed: int, console: Console) -> str:
    """The whole page."""
    real = real_processes(folder, replicates, seed, console)
    found = simulate(replicates, seed, console)
    worst_error = 100 * (ERROR_LIMIT_PCT / 100 * (1 - ERROR_LIMIT_PCT / 100) / replicates) ** 0.5
    return f"""# Calibration of the three-way rule

Made by `python -m harness.calibrate --replicates {replicates} --seed {seed}` (numpy {np.__version__});
not edited by hand. Every cell is {replicates} sequences, so a rate of {ERROR_LIMIT_PCT:g} % is known to
±{worst_error:.2f} points (one standard error). Cells of one noise model and budget share their noise, so they are not
independent.

Cells read WIN / NO_WIN / INCONCLUSIVE in percent. The bar is an improvement of 1 %; at a true 1 % WIN is right and
NO_WIN wrong. The rule:

* tau0 = {DEFAULT.tau0_log_pct:.2f} %; {100 * FAMILY_LEVEL:g} % per side over all looks;
* NO_WIN from process {DEFAULT.p_loss} on; WIN from process {P_WIN} on, and only where the processes agree (p-value of Q
  ≥ {Q_GUARD:g});
* K pairs a process from the first six pairs of process 1; at most {P_CAP} processes.

The simulated model takes {TIER_300.start_s:g} s to start and {TIER_300.pair_s:g} s for a pair.

## Goals (300 s, τ = 0.15 %)

{goals(found)}
## Means over the nine noise models (τ = 0.15 %)

{mean_over_noise(found)}
## Worst of 36 cells (9 noise models × 4 spreads between processes), percent

Saying NO_WIN after one process (P_LOSS = 1) is allowed only once tau0 comes from finished cells.

{worst_cells(found)}
## When processes differ by more than tau0 allows

Gaussian 0.5 % run noise, 300 s, tau0 = {DEFAULT.tau0_log_pct:.2f} %.

{wrong_tau(replicates, seed)}
## Real A/A processes with injected effects

Whole stored processes are drawn with replacement, the two arms swapped by a coin, one arm multiplied by the effect;
{TIER_300.total_s:g} s budget. A process contributes its first K pairs and is never cut into several. In parentheses the
mean number of processes run. The first table is in log-percent.

{real}
## Nominal one-sided level of every look

{levels()}
## Every cell, 300 s

{every_cell(found, TIER_300)}
## Every cell, 600 s

{every_cell(found, TIER_600)}"""


def main(
    replicates: Annotated[int, typer.Option(min=100, help="Sequences per cell.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    traces: Annotated[Path, typer.Option(help="Folder of stored A/A processes.")] = Path("tests/data/noise"),
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("reports/calibration.md"),
) -> None:
    """Re-simulate the decision rule as written and write its error rates and power."""
    console = Console(stderr=True)
    try:
        page = report(traces, replicates, seed, console)
    except UserError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(ExitCode.BAD_INPUT) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    console.print(f"wrote {out}")


if __name__ == "__main__":
    typer.run(main)
