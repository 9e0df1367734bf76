"""What a night begins with, and what it leaves for another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.nightly.estimates import MARGIN, START_S, UNKNOWN_S, Cost, Estimates
from harness.nightly.plan import State, Work, choose, in_order, minutes, ops_in_order
from harness.protocol import Task
from tests.builders import Arm, case, environment, measurement

TEN = Cost(10.0)
GPU = Estimates("cuda", cores=16)


def work(name: str, state: State = State.NEVER, *, op: str = "norm", decides: bool = False, **more: object) -> Work:
    return Work(op, name, state, decides, (TEN,), **more)  # type: ignore[arg-type]


def run_s(cases: int) -> float:
    return MARGIN * (START_S["cuda"] + 10.0 * cases)


def test_what_decides_a_row_comes_first_and_of_what_was_measured_the_oldest() -> None:
    works = [
        work("new", State.MEASURED, last="2026-12-02"),
        work("old", State.MEASURED, last="2026-12-01"),
        work("stale", State.STALE),
        work("never", State.NEVER),
        work("stale-deciding", State.STALE, decides=True),
        work("never-deciding", State.NEVER, decides=True),
        work("begun tonight", State.MEASURED, last="2026-12-03", began=True),
    ]
    assert [one.id for one in in_order(works)] == [
        "begun tonight", "never-deciding", "stale-deciding", "never", "stale", "old", "new",
    ]  # fmt: skip


def test_ops_come_by_their_most_urgent_case() -> None:
    works = [
        work("a", State.MEASURED, op="fresh", last="2026-12-02"),
        work("b", State.STALE, op="stale"),
        work("c", State.MEASURED, op="older", last="2026-12-01"),
        work("d", State.MEASURED, op="mixed", last="2026-12-03"),
        work("e", State.NEVER, op="mixed", decides=True),
    ]
    assert ops_in_order(works) == ["mixed", "stale", "older", "fresh"]


def test_an_op_is_taken_whole_where_it_fits() -> None:
    works = [work(f"c{n}") for n in range(4)]
    choice = choose(works, GPU, left_s=run_s(4), night_s=1e9)
    assert (len(choice.works), choice.reason) == (4, "")
    assert choice.estimate_s == pytest.approx(run_s(4))


def test_else_what_decides_the_row() -> None:
    works = [work("x"), work("y", decides=True), work("z")]
    choice = choose(works, GPU, left_s=run_s(1) + 1, night_s=1e9)
    assert [one.id for one in choice.works] == ["y"]
    assert choice.reason.startswith("deciding cases alone: all of it needs about")


def test_else_nothing_where_another_night_is_long_enough() -> None:
    works = [work(f"c{n}", decides=True) for n in range(4)]
    choice = choose(works, GPU, left_s=run_s(3), night_s=run_s(4))
    assert choice.works == ()
    assert choice.reason == f"all of it needs about {minutes(run_s(4))}, {minutes(run_s(3))} are left"


def test_else_as_much_as_fits_where_no_night_is() -> None:
    works = [work(f"c{n}", decides=True) for n in range(4)]
    choice = choose(works, GPU, left_s=run_s(3), night_s=run_s(3))
    assert [one.id for one in choice.works] == ["c0", "c1", "c2"]
    assert choice.estimate_s <= run_s(3)


def test_what_was_measured_before_may_be_taken_in_part() -> None:
    works = [work(f"c{n}", State.MEASURED, last=f"2026-12-0{4 - n}") for n in range(4)]
    choice = choose(works, GPU, left_s=run_s(2), night_s=1e9)
    assert [one.id for one in choice.works] == ["c3", "c2"], "the oldest evidence first"


@pytest.mark.defence("nightly_fit")
@given(
    st.lists(st.tuples(st.sampled_from(State), st.booleans(), st.floats(0.1, 500)), max_size=12),
    st.floats(0, 3000),
    st.floats(0, 3000),
)
def test_what_is_begun_can_finish(parts: list[tuple[State, bool, float]], left_s: float, night_s: float) -> None:
    works = [Work("op", f"c{n}", state, decides, (Cost(s),)) for n, (state, decides, s) in enumerate(parts)]
    choice = choose(works, GPU, left_s, night_s)
    assert choice.estimate_s <= left_s
    assert set(choice.works) <= set(works)
    assert choice.reason or len(choice.works) == len(works)


def test_estimates_are_of_the_same_comparison_else_of_the_op_else_of_all() -> None:
    mid, wide = case("mid"), case("wide")
    slow = measurement({"k": Arm()}, of=mid).model_copy(update={"phases_s": {"gate": 30.0, "timing": 10.0}})
    quick = measurement({"k": Arm()}, of=wide).model_copy(update={"phases_s": {"timing": 4.0}})
    found = Estimates.from_measurements([slow, quick, quick], "cuda", cores=16)
    assert found.of_task("groupnorm_silu", Task(case=mid, context=None)).measure_s == 40.0
    assert found.of_task("groupnorm_silu", Task(case=wide, context=None)).measure_s == 4.0
    assert found.of_task("groupnorm_silu", Task(case=wide, context="conv")).measure_s == 4.0, "the op's median"
    assert found.of_task("rmsnorm", Task(case=mid, context=None)).measure_s == 4.0, "the median of all"
    nothing = Estimates.from_measurements([slow], "cpu", cores=2)
    assert nothing.of_task("groupnorm_silu", Task(case=mid, context=None)) == Cost(UNKNOWN_S["cpu"])


def test_compiling_ahead_is_shared_by_builders() -> None:
    built = measurement({"k": Arm()}, env=environment()).model_copy(update={"compile_cache": "built ahead"})
    cost = Estimates.from_measurements([built], "cuda", cores=16).of_task(
        "groupnorm_silu", Task(case=built.case, context=None)
    )
    assert cost.build_s == pytest.approx(sum(arm.build_s for arm in built.arms))
    four = Estimates("cuda", cores=16).of_run([Cost(0.0, 40.0)] * 4)
    assert four == pytest.approx(MARGIN * (START_S["cuda"] + 40.0))
    assert Estimates("cuda", cores=2).of_run([Cost(0.0, 40.0)] * 4) == pytest.approx(MARGIN * (START_S["cuda"] + 160.0))
    assert GPU.of_run([]) == 0.0
