"""What the gate and the sampler cost beside the kernels they watch, at sizes that a run meets."""

import time
from typing import Any

import pytest
import torch

from harness.measure.accuracy import Comparison
from harness.measure.inputs import SeededDraw, fingerprint
from harness.measure.sampler import Samples, narrow_enough

pytestmark = pytest.mark.benchmark(timer=time.process_time)  # others on the machine make nothing slower here

ELEMENTS = 1 << 22
LIMITS_S = {"draw": 2.0, "fingerprint": 1.0, "compare": 3.0, "narrow": 0.05}
"""CPU time, several times what a laptop's core needs: they catch a change of order."""


def timed(benchmark: Any, limit: str, call: Any) -> Any:
    result = benchmark.pedantic(call, rounds=3, iterations=1, warmup_rounds=1)
    assert benchmark.stats.stats.min < LIMITS_S[limit]
    return result


def drawn() -> torch.Tensor:
    return SeededDraw(1, torch.bfloat16, torch.device("cpu")).activation("x", (ELEMENTS,))


def test_drawing_four_million_elements(benchmark: Any) -> None:
    assert timed(benchmark, "draw", drawn).numel() == ELEMENTS


def test_fingerprint_of_four_million_elements(benchmark: Any) -> None:
    x = drawn()
    assert len(timed(benchmark, "fingerprint", lambda: fingerprint(x))) == 16


def test_comparing_four_million_elements(benchmark: Any) -> None:
    x = drawn()
    oracle = x.double() * 1.0001

    def compare() -> Comparison:
        comparison = Comparison(atol=1e-2, rtol=1e-2)
        comparison.add(x, x, oracle, against_native=True, extra_ulp=0)
        return comparison

    assert timed(benchmark, "compare", compare).rule_failures == 0


@pytest.mark.parametrize("arms", [4, 12])
def test_asking_after_every_block_whether_it_is_enough(benchmark: Any, arms: int) -> None:
    """Asked up to a hundred times in a comparison: it must stay small beside a block."""
    samples = Samples(pairs_us=[[(100.0 + arm, 100.0 - arm)] * 100 for arm in range(arms)])
    assert timed(benchmark, "narrow", lambda: narrow_enough(samples, 0))
