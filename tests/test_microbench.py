"""What is selected, what is measured again, and what counts as a failure."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from harness import microbench
from harness.errors import UserError
from harness.isolate import Progress, Supervisor
from harness.microbench import Outcome, Selection, _superseded, tasks_of
from harness.protocol import Hello, Job, Settings, Task
from harness.schema.case import Case
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import Store
from tests.builders import LAPTOP, Arm, case, environment, manifest, measurement

BIG = {"N": 1, "C": 512, "T": 5, "H": 32, "W": 32}
WIDE = {"N": 1, "C": 256, "T": 5, "H": 64, "W": 64}


def one(case_id: str, dims: dict[str, int], *, model: str = "hunyuan-vae", contexts: tuple[str, ...] = ()) -> Case:
    return case(case_id, model=model, dims=dims, contexts=contexts)


CASES = manifest(
    one("vae-mid", BIG, contexts=("conv",)),
    one("vae-up", WIDE),
    one("other-mid", BIG, model="wan-vae", contexts=("conv", "add")),
)


def names(device_type: str, selection: Selection | None = None) -> list[str]:
    return [task.name for task in tasks_of(CASES, device_type, selection or Selection())]


def test_a_shape_that_two_models_share_is_measured_once() -> None:
    assert names("cuda") == ["vae-mid", "vae-mid [conv]", "vae-up", "other-mid [add]"]


def test_on_a_cpu_the_twins_are_measured_and_share_too() -> None:
    tasks = tasks_of(CASES, "cpu", Selection())
    assert [task.name for task in tasks] == ["vae-mid", "vae-mid [conv]", "other-mid [add]"]
    assert all(task.case.shape == (1, 32, 1, 8, 8) for task in tasks)


def test_what_decides_comes_first() -> None:
    ordered = manifest(one("side", WIDE, model="side-vae"), one("mid", BIG), one("up", WIDE), deciding=("hunyuan-vae",))
    assert [task.name for task in tasks_of(ordered, "cuda", Selection())] == ["mid", "up"]
    other = one("side", {**WIDE, "T": 9}, model="side-vae")
    ordered = manifest(other, one("mid", BIG), deciding=("hunyuan-vae",))
    assert [task.name for task in tasks_of(ordered, "cuda", Selection())] == ["mid", "side"]


def test_globs_and_contexts_select() -> None:
    assert names("cuda", Selection(cases=("vae-*",))) == ["vae-mid", "vae-mid [conv]", "vae-up"]
    assert names("cuda", Selection(cases=("*up", "other*"))) == [
        "vae-up", "other-mid", "other-mid [conv]", "other-mid [add]",
    ]  # fmt: skip
    assert names("cuda", Selection(context="add")) == ["other-mid [add]"]


@pytest.mark.defence("empty_filter")
def test_a_filter_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(
        UserError, match=r"--case 'vea-\*' matches no case of groupnorm_silu; there are vae-mid, vae-up"
    ):
        names("cuda", Selection(cases=("vae-*", "vea-*")))
    with pytest.raises(UserError, match="--context 'cnov' is in no case of groupnorm_silu; there are add, conv"):
        names("cuda", Selection(context="cnov"))


def test_filters_that_match_only_apart_select_nothing() -> None:
    assert names("cuda", Selection(cases=("vae-up",), context="conv")) == []


def of_ranks(case_id: str, ranks: int) -> Case:
    return one(case_id, {**BIG, "T": ranks}).model_copy(update={"ranks": ranks})


def test_ranks_select_and_tell_shapes_apart() -> None:
    alike = one("pair", BIG).model_copy(update={"ranks": 2})
    several = manifest(one("alone", BIG), alike, of_ranks("eight", 8))

    def named(ranks: int | None) -> list[str]:
        return [task.name for task in tasks_of(several, "cuda", Selection(ranks=ranks))]

    assert named(None) == ["alone", "pair", "eight"]
    assert named(2) == ["pair"]
    with pytest.raises(UserError, match=r"--ranks 4: no case of groupnorm_silu has so many; there are 1, 2, 8\."):
        named(4)


class _Started(Supervisor):
    """Measures nothing; remembers which jobs it was given."""

    jobs: ClassVar[list[Job]] = []

    def hello(self) -> Hello:
        """A worker that finds nothing wrong."""
        self.jobs.append(self.job)
        return Hello(environment=environment(LAPTOP), identities=tuple({} for _ in self.job.tasks), problems=("odd",))

    def run(self, tasks: list[Task]) -> Iterator[Measurement]:
        """None of them."""
        return iter(())


@pytest.mark.parametrize(
    ("here", "asked", "started", "runnable"),
    [(2, None, [1, 2], True), (2, 8, [], False), (1, None, [1], True), (8, 8, [8], True)],
)
def test_ranks_without_a_device_are_said_and_the_rest_runs_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: int, asked: int | None, started: list[int], runnable: bool
) -> None:
    monkeypatch.setattr(microbench, "Supervisor", _Started)
    monkeypatch.setattr(microbench, "device_count", lambda device_type: here)
    monkeypatch.setattr(_Started, "jobs", [])
    several = manifest(of_ranks("eight", 8), of_ranks("pair", 2), one("alone", BIG), of_ranks("other", 2))
    planned: list[tuple[int, int]] = []
    outcome = microbench.bench(
        several, tmp_path, Store(tmp_path / "results"), "cuda", selection=Selection(ranks=asked), settings=Settings(),
        extra=(), broken={}, fresh=True, progress=Progress(), on_measured=lambda of: None,
        on_planned=lambda to_measure, kept: planned.append((to_measure, kept)),
    )  # fmt: skip
    assert [job.ranks for job in _Started.jobs] == started
    assert all({task.case.ranks for task in job.tasks} == {job.ranks} for job in _Started.jobs)
    assert outcome.runnable is runnable
    lacking = [problem for problem in outcome.problems if problem != "odd"]
    if here < 8:
        assert lacking[-1] == (
            "groupnorm_silu: cases of 8 ranks were not run (1 to measure): they need 8 GPUs of one host, "
            f"here are {here}."
        )
    assert len(lacking) == sum(ranks > here for ranks in ((1, 2, 8) if asked is None else (asked,)))
    assert [count for count, _ in planned] == ([1, 2] if started == [1, 2] else [1] * len(started))


def test_failures_are_arms_that_broke_not_arms_that_were_refused() -> None:
    arms = {
        "inhouse.a": Arm(status=ArmStatus.GATE_FAILED, reason="wrong"),
        "inhouse.b": Arm(status=ArmStatus.CRASHED, reason="in build: boom"),
        "inhouse.c": Arm(status=ArmStatus.TIMED_OUT, reason="in gate: no sign of life"),
        "inhouse.d": Arm(status=ArmStatus.OUT_OF_MEMORY, reason="in build: 2 GiB"),
        "inhouse.e": Arm(status=ArmStatus.NOT_INSTALLED, reason="pip install e"),
        "inhouse.f": Arm(status=ArmStatus.FELL_BACK, reason="declared kernel not seen"),
    }
    throttled = measurement({}, status=RunStatus.THROTTLED, reason="10 blocks void", context="conv")
    outcome = Outcome([measurement(arms), throttled], kept=0, problems=())
    assert outcome.failures == [
        "groupnorm_silu/mid: inhouse.b: CRASHED: in build: boom",
        "groupnorm_silu/mid: inhouse.c: TIMED_OUT: in gate: no sign of life",
        "groupnorm_silu/mid: inhouse.d: OUT_OF_MEMORY: in build: 2 GiB",
        "groupnorm_silu/mid [conv]: THROTTLED: 10 blocks void",
    ]


def test_what_a_later_run_with_other_candidates_replaced_is_measured_again(tmp_path: Path) -> None:
    """Trial kernels a, b, a: reports show the last line of as many, so that must be a's again."""
    store = Store(tmp_path)
    of = case("one")

    def made(name: str, day: int) -> Measurement:
        return measurement({name: Arm()}, of=of, started_at=f"2026-12-0{day}T10:00:00Z")

    first = made("a.k", 1)
    store.append(first)
    assert not _superseded(store, first)
    store.append(made("a.k", 2))
    assert not _superseded(store, first), "the same candidates once more"
    store.append(measurement({"b.k": Arm()}, of=case("two"), started_at="2026-12-03T10:00:00Z"))
    assert not _superseded(store, first), "another case"
    store.append(made("b.k", 4))
    assert _superseded(store, first)
    assert not _superseded(store, made("a.k", 5))
    both = measurement({"a.k": Arm(), "b.k": Arm()}, of=of, started_at="2026-12-03T10:00:00Z")
    assert not _superseded(store, both), "what tried more is shown, though another is later"
