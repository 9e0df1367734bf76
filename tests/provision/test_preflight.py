"""What is missing is said in one sentence before anything is installed."""

import sys
import sysconfig
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.provision import preflight


def test_a_missing_compiler_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "Python.h").touch()
    (lack,) = preflight.compiler_lacks(tmp_path)
    assert lack.startswith("no C++ compiler (no-such-compiler) is on the PATH")
    assert "apt install g++" in lack


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    (lack,) = preflight.compiler_lacks(tmp_path)
    assert lack.startswith(f"{tmp_path}/Python.h is missing: ")


def test_absent_packages_are_listed_by_name(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["numpy>=2", "no-such-thing>=1; sys_platform == \'linux\'", "pyyaml"]\n'
    )
    (lack,) = preflight.package_lacks(project)
    assert lack.startswith(f"{sys.executable} lacks no-such-thing: ")
    assert "make wheelhouse" in lack


def test_each_lack_is_one_line_and_the_exit_code_says_unfit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert preflight.main(["use"]) == ExitCode.UNFIT
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 + (not (Path(sysconfig.get_path("include")) / "Python.h").exists())
    assert all(line.startswith("error: ") for line in told)
