"""How long later processes take: without the checks, the compiles and the pairs of what they leave out."""

import pytest

from harness.e2e.eta import ahead, later_pair_s, later_s, later_start_s
from harness.schema.process import ProcessRecord
from harness.schema.vocabulary import ArmStatus
from tests.e2e_builders import CEILING, DYNAMIC, process

K, OTHER = "inhouse.k", "inhouse.other"
PHASES_S = {"build": 5.0, "shadow": 6.0, "compile": 150.0, "quality": 12.0, "baselines": 7.0}
COMPILES_S = {"torch.compile": 25.0, DYNAMIC: 99.0, CEILING: 13.0, K: 10.0, OTHER: 31.0}


def first(found: dict[str, ArmStatus]) -> ProcessRecord:
    """Process 0: 246 s before 16 pairs of a second."""
    record = process({K: 5.0, OTHER: 1.0, CEILING: 8.0}, statuses=found)
    arms = tuple(arm.model_copy(update={"compile_s": COMPILES_S.get(arm.id, 0.0)}) for arm in record.arms)
    return record.model_copy(update={"arms": arms, "start_s": 246.0, "phases_s": PHASES_S})


@pytest.mark.defence("e2e_later_start")
def test_what_process_0_alone_does_is_not_counted_again() -> None:
    assert later_start_s(first({}), ()) == pytest.approx(246 - (6 + 12 + 7) - 13)
    beaten = first({DYNAMIC: ArmStatus.BEATEN})
    assert later_start_s(beaten, {DYNAMIC}) == pytest.approx(246 - (6 + 12 + 7) - 13 - 99)
    assert later_pair_s(beaten, {DYNAMIC}) == pytest.approx(4 / 5), "static, twin and two candidates of five arms"


@pytest.mark.defence("e2e_later_start")
def test_what_is_left_out_is_not_ahead() -> None:
    """Two more processes, the second without K, which the rule has decided by then."""
    pilot = first({DYNAMIC: ArmStatus.BEATEN})
    whole_s = 246 - 25 - 13 - 99 + 16 * 4 / 5
    warm_s = whole_s - 0.7 * (25 + 10 + 31)
    assert ahead([pilot], 3).seconds == pytest.approx(warm_s + whole_s), "process 1 finds the caches of process 0"
    second = process({K: 0.0, OTHER: 1.0}, 1, statuses={DYNAMIC: ArmStatus.BEATEN, K: ArmStatus.DECIDED})
    told = ahead([pilot, second], 3)
    assert (told.processes, told.seconds) == (1, pytest.approx(whole_s - 10 - 16 / 5))
    assert later_s(pilot, {DYNAMIC, K}, 2) == pytest.approx(told.seconds)
