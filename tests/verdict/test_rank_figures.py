"""What ranks saw reaches the page; a case of one rank says nothing of them."""

import pytest

from harness.report.page import _facts
from harness.schema.measurement import Measurement, RanksRecord, RankTimes
from harness.verdict.compare import Staleness, compare
from harness.verdict.ranks import rank_figures
from tests.builders import BASELINE, Arm, measurement, stored


def of_two_ranks() -> Measurement:
    """Two blocks' worth of what two ranks saw of the baseline."""
    of = measurement({"inhouse.a": Arm()}, blocks=8)
    seen = RankTimes(
        durations_us=(((10.0, 12.0), (11.0, 12.0)), ((10.0, 13.0), (10.0, 12.0))),
        skews_us=((1.0, 2.0), (3.0, 250.0)),
        uncertainty_us=4.5,
    )
    arms = tuple(arm.model_copy(update={"rank_times": seen}) if arm.id == BASELINE else arm for arm in of.arms)
    pair = of.case.model_copy(update={"ranks": 2})
    return of.model_copy(update={"arms": arms, "case": pair, "ranks": RanksRecord(devices=("a", "b"))})


def test_figures_are_medians_by_rank_and_the_largest_skew() -> None:
    figures = rank_figures(of_two_ranks())
    assert figures is not None
    assert figures.seen_us == {BASELINE: (10.0, 12.0)}
    assert (figures.ranks, figures.skew_us_median, figures.skew_us_max, figures.uncertainty_us) == (2, 2.5, 250.0, 4.5)


def test_one_rank_has_none_and_is_stored_as_before() -> None:
    of = measurement({"inhouse.a": Arm()}, blocks=8)
    assert rank_figures(of) is None
    written = of.model_dump(mode="json")
    assert "ranks" not in written
    assert all("rank_times" not in arm for arm in written["arms"])
    two = of_two_ranks()
    assert Measurement.model_validate_json(two.model_dump_json()) == two


@pytest.mark.parametrize("ranks", [1, 2])
def test_page_says_how_several_ranks_were_timed(ranks: int) -> None:
    of = of_two_ranks() if ranks == 2 else measurement({"inhouse.a": Arm()}, blocks=8)
    facts = _facts(compare(of.case, stored(of)[0], Staleness(), 0))
    expected = (
        "2 ranks, one device each: times are from the last rank's entry to the last rank's exit; entries lay 2.500 "
        "µs apart (median; 250.0 at most), on clocks known to ±4.500 µs; each rank's own µs a call, waiting for others "
        "included: `torch.compile` 10.00 / 12.00"
    )
    assert (expected in facts) is (ranks == 2)
    assert ("rank" in facts) is (ranks == 2)
