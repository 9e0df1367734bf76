"""The rank that died, raised or hangs is known by name, and all of a group end together; ranks are fakes here."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import rank_group
from harness.measure.telemetry import Poll, Probe
from harness.protocol import Begin, BlockQuery, FromWorker, Hello, Lost, TelemetryQuery, from_worker
from harness.rank_group import MULTICAST_OFF, WorkerGroup, rank_environment
from harness.schema.vocabulary import ArmStatus
from harness.worker_line import Death
from tests.builders import H200, LAPTOP, environment

LIMIT_S = 20.0


@contextmanager
def group(folder: Path, *steps: str) -> Iterator[WorkerGroup[FromWorker]]:
    """A group whose ranks take these steps."""
    told = {**os.environ, **{f"FAKE_RANK_{rank}": one for rank, one in enumerate(steps)}}
    made = WorkerGroup("tests.fake_rank", folder / "fake.log", told, from_worker, len(steps))
    try:
        yield made
    finally:
        made.end()
    assert all(line.process.returncode is not None for line in made.lines)


def death_of(of: WorkerGroup[FromWorker], limit_s: float = LIMIT_S) -> Death:
    """Hear it to its end."""
    limit = time.monotonic() + limit_s
    while isinstance(message := of.receive(limit), Begin):
        pass
    assert message is None
    return of.death("evil.a", "gate")


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (("begin sleep", "begin wait -11"), "rank 1 killed by SIGSEGV (rank 1 about to end with -11)"),
        (("begin wait wait 86", "begin wait -9"), "rank 1 killed by SIGKILL (rank 1 about to end with -9)"),
        (("begin wait 86", "begin wait wait 3", "begin sleep"), "rank 1 exit code 3 (rank 1 about to end with 3)"),
        (("begin wait 1", "begin wait -6"), "rank 1 killed by SIGABRT (rank 1 about to end with -6)"),
        (("begin -11", "begin sleep"), "rank 0 killed by SIGSEGV (rank 0 about to end with -11)"),
    ],
)
@pytest.mark.defence("ranks_blame")
def test_the_rank_that_died_by_itself_is_named(tmp_path: Path, steps: tuple[str, ...], why: str) -> None:
    with group(tmp_path, *steps) as of:
        death = death_of(of)
        if "wait 1" in steps[0]:  # whoever is seen first, the one that a signal ended is named
            for line in of.lines:
                line.process.wait(timeout=LIMIT_S)
            death = of.death("evil.a", "gate")
    assert (death.arm, death.status, death.reason) == ("evil.a", ArmStatus.CRASHED, f"in gate: {why}")


@pytest.mark.defence("ranks_apart")
def test_a_rank_that_raises_alone_ends_the_step_of_those_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "APART_LIMIT_S", 0.3)
    with group(tmp_path, "begin sleep", "begin raised sleep") as of:
        start = time.monotonic()
        death = death_of(of, 3 * LIMIT_S)
    assert time.monotonic() - start < 2 * LIMIT_S, "not the step's own limit"
    assert (death.status, death.reason) == (ArmStatus.CRASHED, "rank 1: in gate: ValueError: boom")


@pytest.mark.defence("ranks_apart_late")
def test_a_rank_that_raised_before_another_was_heard_to_begin_is_not_forgotten(tmp_path: Path) -> None:
    with group(tmp_path, "wait wait wait begin sleep", "begin raised sleep") as of:
        limit = time.monotonic() + LIMIT_S
        assert isinstance(of.receive(limit), Begin)
        assert of._limit(limit + 600) < limit + 600, "the others' time is running"


def test_what_a_rank_said_before_another_died_is_heard_first(tmp_path: Path) -> None:
    """On a busy machine both lie in the pipes: the step that it died in is the one last begun."""
    with group(tmp_path, "wait begin sleep", "-11") as of:
        of.lines[1].process.wait(timeout=LIMIT_S)
        assert select.select([of.fileno()], [], [], LIMIT_S)[0]
        assert isinstance(of.receive(time.monotonic() + LIMIT_S), Begin)
        assert of.receive(time.monotonic() + LIMIT_S) is None
        assert of.death("evil.a", "gate").reason.startswith("in gate: rank 1 killed by SIGSEGV")


def test_ranks_that_all_raise_go_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "APART_LIMIT_S", 0.3)
    with group(tmp_path, "begin raised wait wait begin ended sleep", "begin raised wait wait begin sleep") as of:
        death = death_of(of, 3.0)
    assert death.reason == "in gate: rank 1: no sign of life within the time limit", "of the second step"


@pytest.mark.defence("ranks_named")
def test_the_rank_that_does_not_end_its_step_is_named(tmp_path: Path) -> None:
    with group(tmp_path, "begin ended sleep", "begin sleep", "begin ended sleep") as of:
        death = death_of(of, 3.0)
    assert (death.status, death.reason) == (
        ArmStatus.TIMED_OUT,
        "in gate: rank 1: no sign of life within the time limit",
    )


def test_no_rank_is_named_where_all_wait(tmp_path: Path) -> None:
    with group(tmp_path, "begin sleep", "begin sleep") as of:
        assert death_of(of, 2.0).reason == "in gate: no sign of life within the time limit"


def test_a_lost_device_names_its_rank(tmp_path: Path) -> None:
    with group(tmp_path, "begin sleep", "begin lost sleep") as of:
        while isinstance(message := of.receive(time.monotonic() + LIMIT_S), Begin):
            pass
    assert isinstance(message, Lost)
    assert message.error.startswith("rank 1: in gate: CUDA error")


def test_nothing_of_a_group_is_left(tmp_path: Path) -> None:
    with group(tmp_path, "begin sleep", "begin sleep") as of:
        pids = [line.process.pid for line in of.lines]
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


class Watched(Probe):
    """Reads a device whose processes the test names."""

    def __init__(self, pids: frozenset[int], reasons: int = 0) -> None:
        self.pids = pids
        self.reasons = reasons

    def poll(self, worker_pid: int) -> Poll:
        """As told."""
        return Poll(at_s=time.monotonic(), pids=self.pids, reasons=self.reasons)


def test_every_ranks_device_is_watched_and_ranks_are_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = {"first": Watched(frozenset({11})), "second": Watched(frozenset({12}))}
    devices = [H200.model_copy(update={"uuid": name}) for name in probes]
    with group(tmp_path, "sleep", "sleep") as of:
        sent: list[str] = []
        monkeypatch.setattr(of, "send", lambda message: sent.append(message.model_dump_json()))
        hello = Hello(environment=environment(devices[0]), identities=(), problems=(), peers=(devices[1],))
        of._heard_of(0, hello)
        of.watch(devices[0], lambda kind, uuid: probes[uuid])

        def void() -> str:
            of.answer(BlockQuery(start_s=time.monotonic() - 0.05, stop_s=time.monotonic()))
            return sent[-1]

        probes["first"].pids = frozenset({11, 12})
        assert '"void":""' in void(), "rank 1 is on rank 0's device"
        time.sleep(0.2)
        probes["second"].reasons = 0x40
        assert "hardware thermal slowdown" in void()
        of.answer(TelemetryQuery(start_s=time.monotonic() - 0.2, stop_s=time.monotonic(), void=1))
        assert "hardware thermal slowdown" in sent[-1]


def test_other_ranks_are_no_load_of_others_on_a_cpu(tmp_path: Path) -> None:
    probe = Watched(frozenset())
    with group(tmp_path, "sleep", "sleep", "sleep") as of:
        of.watch(LAPTOP, lambda kind, uuid: probe)
        assert probe.peers == tuple(line.process.pid for line in of.lines[1:])


def test_ranks_are_told_what_torchrun_would_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    told = rank_environment(1, 2, 4321)
    assert {name: told[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")} == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
    }
    assert {name: told[name] for name in MULTICAST_OFF} == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
