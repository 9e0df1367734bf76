"""When the dynamic baseline is clearly beaten, alone and over ranks, and when it is not."""

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import TypeVar

import pytest

from harness.e2e import timing
from harness.e2e.beaten import leave_out_beaten
from harness.e2e.protocol import CellJob
from harness.e2e.state import State
from harness.e2e.workbench import Workbench
from harness.measure.ranks import ALONE, Seat, Team
from harness.measure.train import Span
from harness.schema.process import ModelRole
from harness.schema.vocabulary import ArmStatus, Contract, Kind
from tests.rig import CPU, StubLink

T = TypeVar("T")


class FakeTime:
    """A clock that runs advance by what they take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> int:
        return round(self.now * 1e9)


class Pair(Team):
    """Two ranks; the other one is through with arm 1 so much later."""

    def __init__(self, late_s: float) -> None:
        super().__init__(Seat(0, 2))
        self.late_ns = round(late_s * 1e9)

    def gather(self, value: T, about: str) -> list[T]:
        """This rank's value, and the other's."""
        if isinstance(value, Span) and about == "sample of arm 1":
            return [value, Span(value.entry_ns, value.exit_ns + self.late_ns)]  # type: ignore[list-item]
        return [value, value]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(timing, "perf_counter_ns", fake)
    return fake


def compared(
    clock: FakeTime, static: Iterator[float], dynamic: Iterator[float], team: Team = ALONE, out: str = ""
) -> tuple[State, list[str]]:
    """The dynamic baseline after the comparison, and what was run; runs take so many seconds each."""
    log: list[str] = []

    def taking(seconds: Iterator[float], name: str) -> Callable[[], None]:
        def run() -> None:
            log.append(name)
            clock.now += next(seconds)

        return run

    states = [
        State("torch.compile", ModelRole.BASELINE, Kind.COMPILE, Contract.TOLERANCE, run=taking(static, "s")),
        State("torch.compile_dynamic", ModelRole.BASELINE_DYNAMIC, Kind.COMPILE, Contract.TOLERANCE),
    ]
    states[1].run = taking(dynamic, "d")
    if out:
        states[1].fail(ArmStatus.CRASHED, out)
    link = StubLink()
    link.team = team
    job = CellJob.model_construct(process=0)
    bench = Workbench(job, None, None, [], CPU, None, {}, link)  # type: ignore[arg-type]
    leave_out_beaten(bench, states)
    assert states[0].alive
    return states[1], log


@pytest.mark.defence("e2e_beaten")
def test_it_is_beaten_where_every_sample_is_clearly_slower(clock: FakeTime) -> None:
    dynamic, log = compared(clock, repeat(0.6), repeat(1.17))
    assert dynamic.status is ArmStatus.BEATEN
    assert dynamic.reason == (
        "the fastest of its 4 samples took 1170.00 ms a run, the slowest of as many of the static baseline 600.00 ms"
    )
    assert "".join(log) == "s" + "sdds" + "sdds" + "dssd", "one for the length, a block for nothing, two that count"


@pytest.mark.defence("e2e_clearly_beaten")
@pytest.mark.parametrize(
    ("static", "dynamic"),
    [
        (repeat(1.0), repeat(1.04)),
        (repeat(1.0), chain([1.2] * 5, [1.04], repeat(1.2))),
        (chain([1.0] * 6, [1.15], repeat(1.0)), repeat(1.2)),
        (repeat(1.0), repeat(0.5)),
    ],
)
def test_one_sample_that_is_near_keeps_it_in(
    clock: FakeTime, static: Iterator[float], dynamic: Iterator[float]
) -> None:
    found, _ = compared(clock, static, dynamic)
    assert (found.status, found.reason) == (ArmStatus.OK, "")


def test_the_first_samples_after_compiling_are_thrown_away(clock: FakeTime) -> None:
    found, _ = compared(clock, chain([1.0, 9.0, 9.0], repeat(1.0)), chain([0.1, 0.1], repeat(1.06)))
    assert found.status is ArmStatus.BEATEN


def test_short_runs_are_repeated_in_a_sample(clock: FakeTime) -> None:
    found, log = compared(clock, repeat(0.04), repeat(0.078))
    assert found.reason.startswith("the fastest of its 4 samples took 78.00 ms a run, ")
    assert log.count("d") == 6 * 13, "0.5 s of runs of 40 ms"


def test_ranks_judge_the_times_of_all_of_them(clock: FakeTime) -> None:
    slow_elsewhere, _ = compared(clock, repeat(1.0), repeat(1.0), Pair(late_s=0.2))
    assert slow_elsewhere.status is ArmStatus.BEATEN
    assert "took 1200.00 ms a run" in slow_elsewhere.reason
    near, _ = compared(clock, repeat(1.0), repeat(1.0), Pair(late_s=0.02))
    assert near.alive


def test_a_dynamic_baseline_that_failed_is_not_touched(clock: FakeTime) -> None:
    found, log = compared(clock, repeat(1.0), repeat(2.0), out="in compiling: no")
    assert (found.status, found.reason, log) == (ArmStatus.CRASHED, "in compiling: no", [])
