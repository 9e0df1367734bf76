"""K of a sequence, from its first process."""

from harness.e2e.pilot import pairs_wanted
from harness.e2e.protocol import CellSettings
from harness.e2e.timing import Blocks

STEADY = [(100.0, 100.0)] * 3
LITTLE = [(100.0, 100.4), (99.6, 100.0), (100.0, 99.7)]
MUCH = [(100.0, 103.0), (97.0, 100.0), (104.0, 99.0)]


def wanted(times: list[list[tuple[float, float]]], later: list[int], start_s: float, budget_s: float = 600.0) -> int:
    kept = Blocks(orders=[(0,)] * 3, times_ms=times, block_s=[4.0] * 3)
    return pairs_wanted(kept, later, start_s, CellSettings(budget_s=budget_s))


def test_an_arm_that_later_processes_lack_does_not_choose() -> None:
    times = [STEADY, LITTLE, MUCH]
    assert wanted(times, [0, 1, 2], 50.0) == 24
    assert wanted(times, [0, 1], 50.0) < 24
    assert wanted(times, [0, 1], 50.0) == wanted([STEADY, LITTLE, STEADY], [0, 1], 50.0)


def test_a_baseline_that_is_left_alone_takes_the_fewest() -> None:
    assert wanted([STEADY, MUCH], [0], 50.0) == 6


def test_pairs_are_what_the_budget_leaves_of_a_later_process() -> None:
    """Three processes of 200 s, two arms of three timed: 4/3 s a pair."""
    times = [STEADY, MUCH, STEADY]
    assert wanted(times, [0, 1], 182.0) == 12
    assert wanted(times, [0, 1], 199.0) == 6
    assert wanted(times, [0, 1], -5.0) >= 6, "where the checks took nearly all of process 0"
