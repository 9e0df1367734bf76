"""When a sequence of processes ends."""

from harness.e2e.stopping import settled
from tests.e2e_builders import sequence

K = "inhouse.k"


def test_a_sequence_is_settled_when_every_candidate_is() -> None:
    assert settled(sequence({K: 5.0}), 4)
    assert not settled(sequence({K: 5.0}, 1), 4)
    assert not settled(sequence({K: 5.0, "inhouse.other": 1.0}), 4)
    assert settled(sequence({K: 0.0}, 2), 4)
