"""Pairs of one process as the rule takes them, and one answer against several baselines."""

import math

import pytest

from harness.schema.vocabulary import Decision
from harness.stats.sequences import joint, pair_log_ratios

WIN, NO_WIN, OPEN = Decision.WIN, Decision.NO_WIN, Decision.INCONCLUSIVE


def test_each_block_gives_two_pairs_in_their_order() -> None:
    ratios = pair_log_ratios([(100.0, 110.0), (100.0, 100.0)], [(50.0, 110.0), (100.0, 200.0)])
    assert list(ratios) == pytest.approx([100 * math.log(2), 0.0, 0.0, -100 * math.log(2)])


def test_a_fixed_part_thins_the_gain() -> None:
    (one, _) = pair_log_ratios([(100.0, 100.0)], [(90.0, 90.0)], fixed_ms=500.0, times=5)
    assert one == pytest.approx(100 * math.log(1000 / 950))


@pytest.mark.defence("e2e_both_baselines")
@pytest.mark.parametrize(
    ("decisions", "answer"),
    [
        ((WIN, WIN), WIN),
        ((WIN, OPEN), OPEN),
        ((WIN, NO_WIN), NO_WIN),
        ((OPEN, NO_WIN), NO_WIN),
        ((Decision.CONTINUE, WIN), OPEN),
        ((WIN,), WIN),
    ],
)
def test_a_win_needs_all_and_no_win_needs_one(decisions: tuple[Decision, ...], answer: Decision) -> None:
    assert joint(decisions) is answer


def test_nothing_is_no_answer() -> None:
    with pytest.raises(ValueError, match="no decision"):
        joint([])
