"""The clock of several ranks, on two processes over gloo; a team of one is the clock as it was."""

import os
from pathlib import Path

import pytest
import torch

from harness.measure.clock import WallClock
from harness.measure.rank_clock import team_clock
from harness.measure.ranks import ALONE, first_told
from tests.candidates import ranked
from tests.rig import CPU

ROOT = Path(__file__).parents[2]
DELAY_US = 20_000.0
"""Far above what two processes that share cores with others lose by themselves; 250 µs are in `test_train.py`."""


@pytest.mark.defence("ranks_last_entry")
@pytest.mark.timeout(120)
def test_a_late_rank_is_no_slow_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of many times: what others on the machine do to one only adds. A rank 0 that they hold up as long as
    rank 1 dawdles hides that from a maximum now and then, so of those it is the middle one."""
    outer = os.environ.get("PYTHONPATH")  # on a GPU host some packages come from there
    path = filter(None, (str(ROOT / "tests/worker_site"), str(ROOT), outer))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setenv("DELAY_US", str(DELAY_US))
    seen = ranked.run("tests.measure.delayed_rank", 2)
    assert seen[0] == seen[1], "the ranks agree"
    least, middle = ({name: values[at] for name, values in seen[0].items()} for at in (0, len(seen[0]["time"]) // 2))
    assert least["time"] > 0
    assert abs(least["late time"] - least["time"]) < DELAY_US / 4
    assert middle["late naive"] - least["time"] > DELAY_US * 3 / 4, "what a maximum over the ranks would say"


def test_one_rank_is_timed_as_ever() -> None:
    assert type(team_clock(CPU, ALONE, capturable=True)) is WallClock
    assert ALONE.gather(3, "x") == [3]
    assert (ALONE.lead(3, "x"), ALONE.most(2.0, "x"), ALONE.told("no", "x")) == (3, 2.0, "no")


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (["", ""], ""),
        (["boom", "boom"], "boom"),
        (["", "boom"], "rank 1: boom"),
        (["boom", "bang"], "rank 0: boom"),
    ],
)
def test_what_one_rank_has_to_say_carries_its_name(reasons: list[str], told: str) -> None:
    assert first_told(reasons) == told


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_draws_group_is_its_ranks_and_never_the_world() -> None:
    """Two groups of two in a world of four."""
    for seen in ranked.run("tests.measure.two_groups", 4):
        assert seen["group"] < 1e-5
        assert seen["world"] > 0.1


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_late_rank_is_no_slow_kernel_on_gpus() -> None:
    """Rank 1 enters about 250 µs late; what is left of it in the time is the noise of trains of 2 ms."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs 2 GPUs, here are {torch.cuda.device_count()}")
    seen = ranked.run("tests.measure.late_on_gpu", 2)[0]
    assert seen["doubt"] < 20.0
    assert seen["skew"] < 50.0
    assert seen["late skew"] > 150.0
    assert abs(seen["late time"] - seen["time"]) < 0.03 * seen["time"]
    assert seen["late naive"] - seen["naive"] > 150.0
