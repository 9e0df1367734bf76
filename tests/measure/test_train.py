"""A train's time begins when the last rank is there: lateness of a rank is not time of the kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure.train import Span, train_of

KERNEL_NS = 500_000
LATE_NS = 250_000


def collective(entries_ns: list[int], kernel_ns: int, uncertainty_ns: int = 0) -> list[Span]:
    """Spans of ranks in a collective: all leave it together, `kernel_ns` after the last one came."""
    end = max(entries_ns) + kernel_ns
    return [Span(entry, end, uncertainty_ns) for entry in entries_ns]


@pytest.mark.defence("ranks_last_entry")
def test_a_rank_250_us_late_does_not_read_as_a_slow_kernel() -> None:
    on_time, late = (train_of(collective([0, late_ns], KERNEL_NS)) for late_ns in (0, LATE_NS))
    assert on_time.ns == late.ns == KERNEL_NS
    assert late.skew_ns == LATE_NS
    assert max(late.durations_ns) == KERNEL_NS + LATE_NS, "what a maximum over the ranks would have said"


@pytest.mark.defence("ranks_last_entry")
def test_lateness_within_the_doubt_of_the_clocks_counts_and_beyond_it_does_not() -> None:
    doubtful = train_of(collective([0, 9_000], KERNEL_NS, uncertainty_ns=5_000))
    assert doubtful.ns == KERNEL_NS + 9_000
    assert doubtful.uncertainty_ns == 5_000
    sure = train_of(collective([0, 11_000], KERNEL_NS, uncertainty_ns=5_000))
    assert sure.ns == KERNEL_NS


def test_a_rank_that_ends_later_than_the_last_to_enter_counts() -> None:
    assert train_of([Span(0, 900_000), Span(100_000, 600_000)]).ns == 800_000
    assert train_of([Span(0, 900_000, 5_000), Span(100_000, 600_000, 5_000)]).ns == 790_000


times = st.integers(0, 10**9)
spans = st.lists(
    st.builds(lambda entry, duration, doubt: Span(entry, entry + duration, doubt), times, times, st.integers(0, 10**4)),
    min_size=1,
    max_size=8,
)


@given(spans)
def test_time_lies_between_the_last_entrants_duration_and_the_longest_stretch(of: list[Span]) -> None:
    train = train_of(of)
    first, last = min(span.entry_ns for span in of), max(span.exit_ns for span in of)
    assert 0 <= train.ns <= last - first
    assert train.ns >= max(of, key=lambda span: span.entry_ns).duration_ns
    assert train.durations_ns == tuple(span.duration_ns for span in of)


@given(st.lists(times, min_size=1, max_size=8), times, st.integers(-(10**9), 10**9))
def test_lateness_and_the_zero_of_the_clock_change_nothing(entries: list[int], kernel_ns: int, shift: int) -> None:
    train = train_of(collective([entry + shift for entry in entries], kernel_ns))
    assert train.ns == kernel_ns
    assert train.skew_ns == max(entries) - min(entries)


@given(spans)
def test_exact_clocks_give_last_entry_to_last_exit(of: list[Span]) -> None:
    exact = [Span(span.entry_ns, span.exit_ns) for span in of]
    expected = max(span.exit_ns for span in of) - max(span.entry_ns for span in of)
    assert train_of(exact).ns == expected
