"""`harness nightly` as a person meets it, in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.nightly.record import Ended, load, newest
from tests.test_cli import ENVIRONMENT, harness, lines, project

MEASURED = (ExitCode.DONE, ExitCode.SOME_FAILED)
"""On a busy machine a toy's times may be impossible, which the night says; what is tested here is what it measures."""
ARGUMENTS = ("nightly", "--minutes", "3", "--device", "cpu", "--seconds", "0.05")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--show",), "results/nightly/ holds no night; run `make nightly` first."),
        (("--op", "tyo"), "--op tyo: there is no such manifest in order; there are toy."),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = harness(project(tmp_path), "nightly", *arguments)
    assert done.returncode == ExitCode.BAD_INPUT
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_night_is_measured_shown_and_measured_once(tmp_path: Path) -> None:
    project(tmp_path)
    done = harness(tmp_path, *ARGUMENTS)
    assert done.returncode in MEASURED, done.stderr
    assert "2 of 2 cases are due" in done.stderr
    assert lines(tmp_path) == ["t8", "t9"]
    assert "| µbench | `toy` | 2 cases | 2 never measured | 2 |" in done.stdout
    assert harness(tmp_path, "nightly", "--show").stdout == done.stdout
    assert harness(tmp_path, "verify").returncode == ExitCode.DONE
    again = harness(tmp_path, *ARGUMENTS)
    assert again.returncode in MEASURED, again.stderr
    assert lines(tmp_path) == ["t8", "t9"], "a night measures nothing twice"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_ctrl_c_keeps_what_is_measured_and_the_same_command_goes_on(tmp_path: Path) -> None:
    project(tmp_path, cases=3)
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *ARGUMENTS[:-1], "0.5"], cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT, "HARNESS_TEST_LOCKS": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = time.monotonic() + 150
    while not (tmp_path / "results").exists() or not lines(tmp_path):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "interrupted: what was measured is in results/; the same command goes on from there" in err
    assert "Traceback" not in err
    night = load(newest(tmp_path))
    assert (night.calls[0].ended, night.pieces[0].ended) == ("interrupted", Ended.CUT)
    assert (tmp_path / "reports/matrix.md").exists()
    done = harness(tmp_path, *ARGUMENTS)
    assert done.returncode in MEASURED, done.stderr
    assert sorted(lines(tmp_path)) == ["t10", "t8", "t9"]
    assert [call.ended for call in load(newest(tmp_path)).calls] == ["interrupted", "finished"]
