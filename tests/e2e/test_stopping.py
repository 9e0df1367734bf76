"""When a sequence of processes ends."""

import pytest

from harness.e2e.stopping import decided, refused, settled
from harness.schema.vocabulary import ArmStatus
from tests.e2e_builders import DYNAMIC, SLOWED, STATIC, TWIN, process, sequence

K, OTHER = "inhouse.k", "inhouse.other"


def test_a_sequence_is_settled_when_every_candidate_is() -> None:
    assert settled(sequence({K: 5.0}), 4)
    assert not settled(sequence({K: 5.0}, 1), 4)
    assert not settled(sequence({K: 5.0, OTHER: 1.0}), 4)
    assert settled(sequence({K: 0.0}, 2), 4)


def test_a_known_positive_is_settled_when_the_baseline_has_won_against_it() -> None:
    assert not settled(sequence({K: 0.0, SLOWED: -2.0}, 2), 4)
    assert settled(sequence({K: 0.0, SLOWED: -2.0}, 3), 4)
    assert settled(sequence({K: 0.0, SLOWED: 0.0}, 2), 4), "it reads nothing: that is settled too, and told"


@pytest.mark.defence("e2e_decided")
def test_each_candidate_is_decided_by_its_own_looks() -> None:
    gains = {K: 0.0, OTHER: 1.0, "inhouse.fast": 5.0}
    assert decided(sequence(gains, 1), 4) == {}
    lost = {K: (ArmStatus.DECIDED, "the rule said NO_WIN after process 1")}
    won = {"inhouse.fast": (ArmStatus.DECIDED, "the rule said WIN after process 2")}
    two = sequence(gains, 2)
    assert decided(two, 4) == lost
    third = process(gains, 2, statuses={K: ArmStatus.DECIDED})
    said = tuple(one.model_copy(update={"reason": lost[K][1]}) if one.id == K else one for one in third.arms)
    three = [*two, third.model_copy(update={"arms": said})]
    assert decided(three, 4) == lost | won, "what was said in the process that left it out stands"
    assert not settled(three, 4), "one is open"
    assert settled([*two, process({K: 0.0, "inhouse.fast": 5.0}, 2, statuses={K: ArmStatus.DECIDED})], 4)


def test_a_candidate_is_decided_against_every_baseline_that_is_timed() -> None:
    near = {K: 3.0, DYNAMIC: 1.9}
    assert decided(sequence(near), 4) == {}, "a win over the static one alone"
    beaten = sequence(near, statuses={DYNAMIC: ArmStatus.BEATEN})
    assert decided(beaten, 4) == {K: (ArmStatus.DECIDED, "the rule said WIN after process 2")}


def test_a_candidate_that_failed_is_not_decided() -> None:
    assert decided([*sequence({K: 0.0}, 2), process({K: 0.0}, 2, statuses={K: ArmStatus.CRASHED})], 4) == {}


def test_what_process_0_found_holds() -> None:
    found = {K: ArmStatus.GATE_FAILED, DYNAMIC: ArmStatus.BEATEN, TWIN: ArmStatus.CRASHED}
    assert refused(process({K: 0.0, OTHER: 0.0}, statuses=found)) == {
        K: (ArmStatus.GATE_FAILED, "broke"), DYNAMIC: (ArmStatus.BEATEN, "broke"),
    }, "what is no candidate and failed is tried again"  # fmt: skip
    assert refused(process({K: 0.0}, statuses={STATIC: ArmStatus.OUT_OF_MEMORY})) == {}
