"""The calibration page: the same bytes from the same seed, its goals judged, its input checked."""

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from harness import calibrate
from harness.errors import ExitCode, UserError

ROOT = Path(__file__).parents[1]
TRACES = ROOT / "tests" / "data" / "noise"


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    app = typer.Typer()
    app.command()(calibrate.main)
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def page() -> str:
    return calibrate.report(TRACES, 200, 5, Console(file=StringIO()))


def test_the_page_says_how_it_was_made_and_holds_every_cell(page: str) -> None:
    assert "`python -m harness.calibrate --replicates 200 --seed 5`" in page
    for tier in ("300 s", "600 s"):
        body = page.split(f"## Every cell, {tier}")[1].split("##")[0]
        rows = [line for line in body.splitlines() if line.startswith("| ")]
        assert len(rows) == 2 + 9 * 4
        for row in rows[2:]:
            for cell in row.strip("| ").split(" | ")[2:]:
                assert sum(float(rate) for rate in cell.split(" / ")) == pytest.approx(100, abs=0.2)
    assert "| H200, one step of Wan 1.3B | 7 | 0." in page
    assert "| NO_WIN, looks from 2 | - | 0.0250 | 0.0157 | 0.0120 |" in page


def test_a_missed_goal_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = calibrate.simulate(200, 5, Console(file=StringIO()))
    assert "**no**" not in calibrate.goals(found)
    monkeypatch.setattr(calibrate, "WIN_POWER_PCT", 99.0)
    assert re.findall(r"\| (.*), mean \| ≥ (\d+) % \| .* \| \*\*no\*\* \|", calibrate.goals(found)) == [
        ("WIN at 2 %", "99")
    ]
    monkeypatch.setattr(calibrate, "ERROR_LIMIT_PCT", -1.0)
    assert calibrate.goals(found).count("**no**") == 3


def test_the_committed_page_meets_its_goals() -> None:
    committed = (ROOT / "reports" / "calibration.md").read_text(encoding="utf-8")
    goals = committed.split("## Goals")[1].split("## ")[0]
    assert goals.count("| yes |") == 4
    assert "**no**" not in goals
    assert "--replicates 20000 --seed 1`" in committed


@pytest.mark.slow
def test_the_committed_page_is_what_the_command_writes() -> None:
    committed = (ROOT / "reports" / "calibration.md").read_text(encoding="utf-8")
    if f"(numpy {np.__version__})" not in committed:
        pytest.skip("another numpy draws other random numbers")
    assert calibrate.report(TRACES, 20_000, 1, Console(file=StringIO())) == committed


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"order": "ABBA", "ms": [1, 2, 3], "start_s": 1}', "ABBA or BAAB"),
        ('{"order": "ABBA", "start_s": 1}', "'ms'"),
        ("{not json", "Expecting"),
        ("[1, 2]", "not a stored A/A process"),
    ],
)
def test_a_broken_trace_is_named_with_its_line(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"order": "ABBA", "ms": [1, 2, 3, 4], "start_s": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"x\.jsonl:2: not a stored A/A process") as error:
        calibrate.load_traces(path)
    assert why in str(error.value)


def test_the_command_writes_the_same_bytes_from_the_same_seed(page: str, tmp_path: Path) -> None:
    out = tmp_path / "reports" / "calibration.md"
    arguments = ["--replicates", "200", "--seed", "5", "--traces", str(TRACES), "--out", str(out)]
    assert invoke(*arguments)[0] == ExitCode.DONE
    assert out.read_text(encoding="utf-8") == page


def test_another_seed_gives_other_figures() -> None:
    quiet = Console(file=StringIO())
    assert calibrate.real_processes(TRACES, 200, 5, quiet) != calibrate.real_processes(TRACES, 200, 6, quiet)


def test_a_folder_without_traces_is_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "calibration.md"
    exit_code, output = invoke("--replicates", "100000000", "--traces", str(tmp_path), "--out", str(out))
    assert exit_code == ExitCode.BAD_INPUT
    assert "there are no stored A/A processes" in output.replace("\n", " ")
    assert not out.exists()
