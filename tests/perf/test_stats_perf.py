"""Statistics never weigh on a run: intervals are recomputed at every block, simulations run in the normal suite."""

import subprocess
import sys
import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.stats import RuleSettings, decide, hl_interval
from harness.stats.simulate import TIER_600, Noise, Sequences, simulate_sequences

pytestmark = pytest.mark.benchmark(timer=time.process_time)  # others on the machine make nothing slower here

RNG = np.random.default_rng(0)


def median_s(benchmark: BenchmarkFixture) -> float:
    """0 where benchmarks are disabled, as under xdist: the function ran once and was not timed."""
    return float(benchmark.stats["median"]) if benchmark.enabled else 0.0


def test_interval_of_a_hundred_blocks(benchmark: BenchmarkFixture) -> None:
    benchmark(hl_interval, RNG.normal(0, 1, 100))
    assert median_s(benchmark) < 0.01


def test_ruling_on_eight_processes(benchmark: BenchmarkFixture) -> None:
    processes = [RNG.normal(1.0, 0.3, 24) for _ in range(8)]
    benchmark(decide, processes, 8, RuleSettings())
    assert median_s(benchmark) < 0.05


def test_a_thousand_simulated_sequences(benchmark: BenchmarkFixture) -> None:
    def run() -> Sequences:
        return simulate_sequences(Noise.GAUSSIAN_2, TIER_600, 1000, np.random.default_rng(0), RuleSettings())

    benchmark.pedantic(run, rounds=3)
    assert median_s(benchmark) < 2.0


def test_statistics_do_not_import_torch() -> None:
    code = "import sys, harness.stats, harness.calibrate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
