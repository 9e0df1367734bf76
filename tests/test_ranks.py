"""Real ranks, two processes over gloo: what one of them does wrong is found and named; its neighbours are measured."""

import os
import time
from pathlib import Path

import pytest

from harness import device_lock
from harness.isolate import Progress, Supervisor
from harness.measure.telemetry import Poll, Probe
from harness.protocol import Job, Settings, Task
from harness.schema.case import Case, Confidence, Dtype
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import RunStatus
from tests.builders import BASELINE
from tests.rig import TOLERANCE

ROOT = Path(__file__).parent.parent
PAIR = Case(
    id="pair",
    model="toy",
    dims={"T": 15, "D": 96},
    params={"eps": 1e-6, "rounding": "once", "residual": True},
    dtype=Dtype.BF16,
    calls=1,
    step="a step of a toy",
    source="made up for a test of the harness",
    confidence=Confidence.QUOTED,
    rehearsal={"T": 3, "D": 96},
    ranks=2,
)
"""A number of tokens that two ranks cannot share out evenly."""


class Quiet(Probe):
    """Nobody else on the machine."""

    def poll(self, worker_pid: int) -> Poll:
        """Nothing to see."""
        return Poll(at_s=time.monotonic())


@pytest.fixture(autouse=True)
def _locks_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)


def measured(folder: Path, *names: str, **environment: str) -> Measurement:
    """The toy pair with these of `tests.evil.ranks` alone; no process of it is left."""
    job = Job(
        root=str(ROOT),
        op="allreduce_rmsnorm",
        device_type="cpu",
        tolerance=TOLERANCE,
        tasks=(Task(case=PAIR, context=None, only=frozenset(f"evil.{name}" for name in names)),),
        settings=Settings(seconds_per_arm=0.05),
        extra=("tests.evil.ranks",),
    )
    outer = os.environ.get("PYTHONPATH")
    mark = f"HARNESS_TEST_MARK={folder}"
    told = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "tests/worker_site"), str(ROOT), outer))),
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".bench/cache/tests"),
        "HARNESS_TEST_NO_INDUCTOR": "1",
        "HARNESS_TEST_MARK": str(folder),
        **environment,
    }
    with Supervisor(job, folder / "work", Progress(), probe=lambda kind, uuid: Quiet(), environment=told) as supervisor:
        supervisor.hello()
        (of,) = supervisor.run(list(job.tasks))
    assert not left_behind(mark)
    assert of.status is RunStatus.MEASURED, of.reason
    return of


def left_behind(mark: str) -> list[int]:
    """Processes that were told the mark and still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            told, stat = (folder / "environ").read_bytes(), (folder / "stat").read_text()
        except OSError:
            continue
        if mark.encode() in told and stat.rpartition(")")[2].split()[0] != "Z":
            found.append(int(folder.name))
    return found


def said(of: Measurement) -> dict[str, str]:
    """Status and reason of the toy's candidates."""
    return {
        arm.id.removeprefix("evil."): f"{arm.status}: {arm.reason}" for arm in of.arms if arm.id.startswith("evil.")
    }


@pytest.mark.defence("ranks_equal")
@pytest.mark.defence("ranks_multicast")
@pytest.mark.timeout(240)
def test_every_rank_is_judged_and_all_record_one_time(tmp_path: Path) -> None:
    of = measured(
        tmp_path, "honest", "honest_rewrite", "wrong_on_rank_1", "unequal", "declares_multicast", "calls_multicast"
    )
    found = said(of)
    assert found["wrong_on_rank_1"].startswith("GATE_FAILED: contract: layout contiguous: rank 1: ")
    assert found["unequal"] == (
        "GATE_FAILED: normal: claims equal_ranks, but the outputs of rank 1 are not those of rank 0"
    )
    assert found["declares_multicast"] == "INELIGIBLE: needs NVLink multicast, which stays off here"
    assert found["calls_multicast"].startswith("GATE_FAILED: in contract: calls symm_mem::multimem_all_reduce_, which")
    assert found["honest"].startswith("REHEARSED")
    assert found["honest_rewrite"] == "OK: "
    assert of.ranks is not None
    assert len(of.ranks.devices) == 2
    assert of.input_fingerprints["x"] != of.input_fingerprints["x@1"]
    assert of.input_fingerprints["weight"] == of.input_fingerprints["weight@1"]
    for arm_id in (BASELINE, "evil.honest_rewrite"):
        arm = of.arm(arm_id)
        assert arm is not None
        assert arm.gate is not None
        assert arm.gate.elements == 2 * 2 * 15 * 96, "y and h of both ranks"
        assert arm.rank_times is not None
        assert len(arm.samples_us) == len(arm.rank_times.durations_us) == len(of.orders) > 0
        for pair, durations, skews in zip(
            arm.samples_us, arm.rank_times.durations_us, arm.rank_times.skews_us, strict=True
        ):
            for time_us, seen_us, skew_us in zip(pair, durations, skews, strict=True):
                assert len(seen_us) == 2
                assert time_us <= max(seen_us) + 1e-6
                assert max(seen_us) <= time_us + skew_us / arm.launches + 1e-6


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("crashes", "CRASHED: in gate: rank 1 killed by SIGSEGV"),
        ("raises", "CRASHED: rank 1: in gate: ValueError: boom"),
        (
            "hangs",
            "TIMED_OUT: in gate: no sign of life within the time limit",
        ),  # the other waits for it in the next call
    ],
)
def test_what_ends_one_rank_is_blamed_and_the_others_are_measured(tmp_path: Path, how: str, why: str) -> None:
    of = measured(tmp_path, "honest_rewrite", how, EVIL_RANKS=how, HARNESS_TEST_GATE_LIMIT_S="40")
    found = said(of)
    assert found[how].startswith(why)
    assert found["honest_rewrite"] == "OK: "
    assert BASELINE in of.timed_arms
