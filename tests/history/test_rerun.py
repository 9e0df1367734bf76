"""Old and new build are run again from their commits, in turn, until the rule decides; what cannot be is said."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UnfitError, UserError
from harness.history import history, rerun
from harness.history.confirm import ConfirmStore
from harness.schema.history import Change, Metric, Standing
from harness.schema.measurement import EnvironmentRecord
from harness.store import Store
from tests.history.nights import NEW, OLD, nights, run


class Project:
    """A git project with nights of an old and a new build, and a `harness bench` that measures what it is told to."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.commits = {"old": self.commit("old"), "new": self.commit("new")}
        self.builds: dict[str, EnvironmentRecord] = {
            name: build.model_copy(update={"git_sha": self.commits[name]})
            for name, build in (("old", OLD), ("new", NEW))
        }
        self.measures: dict[str, EnvironmentRecord | None] = dict(self.builds)
        self.speed = {"old": 1.3, "new": 1.3 * 0.97}
        self.ran: list[tuple[str, list[str]]] = []
        nights(root, 24, 16, 0.97, build=lambda number: self.builds["new" if number >= 16 else "old"])
        real = subprocess.run

        def fake(command: list[str], **options: Any) -> Any:
            if command[0] == "git":
                return real(command, **options)
            folder = Path(options["cwd"])
            assert options["env"]["PYTHONPATH"] == str(folder), "the checkout's own code runs"
            side = (folder / "side").read_text()
            self.ran.append((side, command[3:]))
            env = self.measures[side]
            if env is not None:
                count = len(self.ran)
                Store(folder / "results").append(run(self.speed[side], env, 200, seed=count, minutes=count))
            return subprocess.CompletedProcess(command, 0)

        monkeypatch.setattr(rerun.subprocess, "run", fake)

    def commit(self, side: str) -> str:
        def git(*arguments: str) -> str:
            name = ["-c", "user.name=a", "-c", "user.email=a@b"]
            command = ["git", *name, *arguments]
            return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

        git("init", "-q")
        (self.root / "side").write_text(side)
        git("add", "side")
        git("commit", "-qm", side)
        return git("rev-parse", "HEAD")

    def change(self) -> Change:
        _, changes = history(self.root)
        return next(one for one in changes if one.key.metric is Metric.RATIO)

    def confirm(self) -> Change:
        return rerun.confirm(self.change(), self.root, None, None, lambda line: None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


@pytest.mark.defence("history_in_turn")
def test_pairs_are_run_in_turn_until_the_rule_decides(project: Project) -> None:
    change = project.confirm()
    assert change.standing is Standing.REGRESSION
    assert [side for side, _ in project.ran] == ["old", "new", "new", "old", "old", "new"]
    assert project.ran[0][1] == ["bench", "groupnorm_silu", "--case", "mid", "--fresh", "--device", "cuda"]
    assert project.change().standing is Standing.REGRESSION, "from the store alone"
    assert len(Store(project.root / "results").load()) == 24, "fresh runs are no nights"


def test_an_interrupted_confirmation_goes_on_where_it_was(project: Project) -> None:
    store = ConfirmStore(project.root / "results")
    store.append(run(1.3, project.builds["old"], 150, seed=71, minutes=1))
    store.append(run(1.3 * 0.97, project.builds["new"], 150, seed=72, minutes=2))
    assert project.confirm().standing is Standing.REGRESSION
    assert len(project.ran) == 4


def test_a_suspicion_that_does_not_hold_ends_under_the_bar(project: Project) -> None:
    project.speed["new"] = 1.3
    assert project.confirm().standing is Standing.UNDER_THE_BAR
    assert len(project.ran) == 4


def test_another_build_than_the_nights_is_refused(project: Project) -> None:
    project.measures["old"] = project.builds["old"].model_copy(update={"packages": {"torch": "2.99"}})
    with pytest.raises(
        UserError, match=r"old build cannot be made again with .*torch 2\.11\.0\+cu130, now 2\.99.*--old-python"
    ):
        project.confirm()


def test_runs_that_leave_nothing_are_said(project: Project) -> None:
    project.measures["new"] = None
    with pytest.raises(UnfitError, match="gave no pair on one card"):
        project.confirm()


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        (None, "was made outside a checkout"),
        ("f" * 40 + "+dirty", "was made of a tree with uncommitted changes"),
        ("f" * 40, "commit ffffffffffff cannot be checked out"),
    ],
)
def test_a_build_without_its_commit_cannot_be_run_again(project: Project, commit: str | None, said: str) -> None:
    change = project.change()
    other = change.model_copy(update={"before": change.before.model_copy(update={"git_sha": commit})})
    with pytest.raises(UserError, match=said):
        rerun.confirm(other, project.root, None, None, lambda line: None)
    assert project.ran == []
