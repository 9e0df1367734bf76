"""What `make` would run, seen by `make -n` in a copy of the repository's top."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.provision.providers import REPOSITORY
from tests.commands import make_targets

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="GNU make is not installed")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A fresh clone's top, as far as the Makefile looks."""
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt", "constraints-gpu.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    return tmp_path


_OUTER = ("PYTHON", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")
"""What a make that runs these tests has set."""


def would_run(top: Path, *arguments: str, path: Path | None = None, **variables: str) -> str:
    """Output of `make -n`; `path` comes first on the PATH."""
    env = {name: value for name, value in os.environ.items() if name not in _OUTER}
    if path is not None:
        env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    return subprocess.run(
        ["make", "-n", *arguments], cwd=top, env=env | variables, check=True, capture_output=True, text=True
    ).stdout


def fake_nvidia_smi(folder: Path, answer: str) -> Path:
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{answer}\n")
    script.chmod(0o755)
    return folder


def test_first_use_makes_the_environment_then_runs(top: Path, tmp_path: Path) -> None:
    blind = fake_nvidia_smi(tmp_path / "bin", "exit 9")
    lines = would_run(top, "bench", "OP=rmsnorm", "ARGS=--fresh", path=blind)
    assert "-m venv .venv" in lines
    assert "-c constraints-cpu.txt -e '.[dev,e2e]'" in lines
    assert lines.index("pip install") < lines.index(".venv/bin/python -m harness bench rmsnorm --fresh")


def test_a_gpu_brings_the_cuda_extra_and_its_versions(top: Path, tmp_path: Path) -> None:
    gpu = fake_nvidia_smi(tmp_path / "bin", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert "-c constraints-gpu.txt -e '.[dev,e2e,cuda]'" in would_run(top, "test", path=gpu)


def test_nothing_is_installed_twice_and_a_changed_project_installs_again(top: Path, tmp_path: Path) -> None:
    blind = fake_nvidia_smi(tmp_path / "bin", "exit 9")
    stamp = top / ".venv/installed-cpu"
    stamp.parent.mkdir()
    stamp.touch()
    newest = stamp.stat().st_mtime_ns + 10**9
    os.utime(stamp, ns=(newest, newest))
    assert "pip install" not in would_run(top, "test", path=blind)
    os.utime(top / "constraints-cpu.txt", ns=(newest + 10**9, newest + 10**9))
    assert "pip install" in would_run(top, "test", path=blind)


def test_a_named_interpreter_is_used_as_it_is(top: Path) -> None:
    lines = would_run(top, "bench", PYTHON="/opt/python")
    assert "pip install" not in lines
    assert "-m venv" not in lines
    assert f"PYTHONPATH={top} /opt/python -m harness bench groupnorm_silu" in lines


def test_too_old_a_python_is_one_sentence(top: Path) -> None:
    done = subprocess.run(["make", "test", "PYTHON=/bin/false"], cwd=top, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Python 3.11 or newer is needed and /bin/false is not one")


def test_set_up_tools_do_not_wait_for_the_environment(top: Path) -> None:
    assert "pip install" not in would_run(top, "providers", "wheelhouse")


def test_help_lists_every_target(top: Path) -> None:
    done = subprocess.run(["make", "help"], cwd=top, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    assert listed == make_targets()
    assert "e2e" in listed


def test_ci_runs_the_test_command() -> None:
    assert (REPOSITORY / ".ci/run").read_text().splitlines()[-1] == "exec make test"
    assert os.access(REPOSITORY / ".ci/run", os.X_OK)
