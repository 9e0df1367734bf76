"""What CI runs: every target and verb exists, rights are least, actions are pinned, nothing foreign reaches a shell."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import make_targets, verbs

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
_PINNED = re.compile(r"- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
_VERB = re.compile(r"-m harness (\S+)((?: --?[\w-]+)*)")
_TRUSTED = re.compile(
    r"""(github\.(token|workflow|ref|repository)|vars\.[A-Z_]+|env\.[A-Z_]+|runner\.temp|inputs\.minutes|\d+|''"""
    r"""|always\(\)|!?cancelled\(\)|steps\.[a-z_]+\.outcome|'success')"""
)


def load(file: Path) -> dict[Any, Any]:
    """A workflow; YAML reads its key `on` as true."""
    found: dict[Any, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def steps(file: Path) -> Iterator[dict[str, Any]]:
    """Every step of every job."""
    for job in load(file)["jobs"].values():
        yield from job["steps"]


def scripts(file: Path) -> list[str]:
    """What is run in a shell."""
    return [step["run"] for step in steps(file) if "run" in step]


@pytest.fixture(params=WORKFLOWS, ids=lambda file: file.stem)
def workflow(request: pytest.FixtureRequest) -> Path:
    """Each workflow."""
    file: Path = request.param
    return file


def test_there_are_the_two() -> None:
    assert [file.name for file in WORKFLOWS] == ["nightly.yml", "pull_request.yml"]


def test_every_make_target_exists(workflow: Path) -> None:
    called = [
        word
        for script in scripts(workflow)
        for line in script.splitlines()
        if line.strip().startswith("make ")
        for word in re.sub(r'\S+="[^"]*"', "", line).split()[1:]
        if "=" not in word
    ]
    assert called
    assert set(called) <= make_targets()


def test_every_verb_and_option_exists(workflow: Path) -> None:
    known = verbs()
    for script in scripts(workflow):
        for verb, options in _VERB.findall(script):
            assert verb in known
            assert set(options.split()) <= known[verb]


def test_actions_are_pinned_by_their_commit(workflow: Path) -> None:
    lines = [line.strip() for line in workflow.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert _PINNED.fullmatch(line if line.startswith("- ") else f"- {line}"), line
    by_action: dict[str, set[str]] = {}
    for file in WORKFLOWS:
        for step in steps(file):
            if "uses" in step:
                action, _, commit = step["uses"].partition("@")
                by_action.setdefault(action, set()).add(commit)
    assert all(len(commits) == 1 for commits in by_action.values()), "one action, one commit"


def test_rights_are_the_least(workflow: Path) -> None:
    of = load(workflow)
    writing = {
        (name, right)
        for name, job in of["jobs"].items()
        for right, level in job.get("permissions", of["permissions"]).items()
        if level != "read"
    }
    assert of["permissions"] in ({}, {"contents": "read"})
    assert writing == ({("publish", "contents"), ("tell", "issues")} if workflow.stem == "nightly" else set())
    for job in of["jobs"].values():
        if "contents" not in {right for right, level in job.get("permissions", {}).items() if level == "write"}:
            checkouts = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
            assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_a_job_that_runs_candidates_may_write_nothing() -> None:
    for file in WORKFLOWS:
        for job in load(file)["jobs"].values():
            if any(re.search(r"\bmake\b|-m harness", step.get("run", "")) for step in job["steps"]):
                assert set(job.get("permissions", {"contents": "read"}).values()) == {"read"}


def test_nothing_foreign_reaches_a_shell(workflow: Path) -> None:
    text = workflow.read_text()
    assert "pull_request_target" not in text
    assert all("${{" not in script for script in scripts(workflow)), "values go through env"
    for expression in re.findall(r"\$\{\{(.*?)\}\}", text):
        left = _TRUSTED.sub("", expression)
        assert re.fullmatch(r"[\s|&!=]*", left), expression
    assert "github.event" not in text
    assert "head_ref" not in text


def test_one_run_at_a_time_on_the_gpu() -> None:
    nightly = load(FOLDER / "nightly.yml")
    assert nightly["concurrency"] == {"group": "nightly", "cancel-in-progress": False}
    assert nightly["jobs"]["measure"]["runs-on"] == ["self-hosted", "linux", "gpu"]
    assert all("timeout-minutes" in job for file in WORKFLOWS for job in load(file)["jobs"].values())


def test_shells_stop_at_the_first_error(workflow: Path) -> None:
    assert load(workflow)["defaults"] == {"run": {"shell": "bash"}}, "which runners start with -eo pipefail"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_shells_understand_it(workflow: Path) -> None:
    for script in scripts(workflow):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_evidence_is_committed_beside_its_sources_on_its_branch(tmp_path: Path) -> None:
    """The real script, on a real remote: two nights, main moving on between them."""
    (script,) = (text for text in scripts(FOLDER / "nightly.yml") if "commit-tree" in text)
    remote, clone, temp = tmp_path / "remote.git", tmp_path / "clone", tmp_path / "temp"

    def git(*arguments: str, cwd: Path = clone) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        done = subprocess.run(["git", *identity, *arguments], cwd=cwd, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def night(line: str) -> None:
        shutil.rmtree(temp, ignore_errors=True)
        for name in ("results", "reports"):
            (temp / "night" / name).mkdir(parents=True)
            (temp / "night" / name / "a.txt").write_text(line)
        env = {"RUNNER_TEMP": str(temp), "GITHUB_SHA": git("rev-parse", "HEAD"), "RESULTS_BRANCH": "nightly-results"}
        git("fetch", "--quiet", "origin")
        subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script], cwd=clone, check=True, capture_output=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **env},
        )  # fmt: skip
        git("checkout", "--quiet", "--force", "main")

    git("init", "--quiet", "--bare", "-b", "main", str(remote), cwd=tmp_path)
    git("clone", "--quiet", str(remote), str(clone), cwd=tmp_path)
    git("checkout", "--quiet", "-b", "main")
    for number in (1, 2):
        (clone / "source.py").write_text(f"x = {number}\n")
        git("add", "source.py")
        git("commit", "--quiet", "-m", f"source {number}")
        git("push", "--quiet", "origin", "main")
        night(f"night {number}\n")
    branch = "origin/nightly-results"
    git("fetch", "--quiet", "origin")
    assert git("show", f"{branch}:results/a.txt") == "night 2"
    assert git("show", f"{branch}:source.py") == "x = 2"
    assert git("show", f"{branch}~1:results/a.txt") == "night 1"
    assert len(git("rev-list", "--parents", "-n", "1", branch).split()) == 3, "the branch and main are its parents"
    assert git("show", "origin/main:source.py") == "x = 2"
    assert subprocess.run(["git", "cat-file", "-e", "origin/main:results"], cwd=clone, check=False).returncode != 0
