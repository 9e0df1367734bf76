"""When a sequence of processes ends."""

from harness.e2e.stopping import settled
from tests.e2e_builders import SLOWED, sequence

K = "inhouse.k"


def test_a_sequence_is_settled_when_every_candidate_is() -> None:
    assert settled(sequence({K: 5.0}), 4)
    assert not settled(sequence({K: 5.0}, 1), 4)
    assert not settled(sequence({K: 5.0, "inhouse.other": 1.0}), 4)
    assert settled(sequence({K: 0.0}, 2), 4)


def test_a_known_positive_is_settled_when_the_baseline_has_won_against_it() -> None:
    assert not settled(sequence({K: 0.0, SLOWED: -2.0}, 2), 4)
    assert settled(sequence({K: 0.0, SLOWED: -2.0}, 3), 4)
    assert settled(sequence({K: 0.0, SLOWED: 0.0}, 2), 4), "it reads nothing: that is settled too, and told"
