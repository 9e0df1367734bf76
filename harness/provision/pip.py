"""Download one wheel for a named Python and platform, or one source archive, with the interpreter's own pip."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Older names of manylinux_2_N tags (PEP 599, 571, 513)."""


@dataclass(frozen=True)
class Target:
    """The machine that wheels are for, which need not be this one."""

    python: str
    """`3.12`."""
    platform: str
    """`manylinux_2_28_x86_64` takes every wheel built for that glibc or an older one; other tags are taken as is."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.\d+", self.python):
            raise UserError(f"Python version {self.python!r} is not of the form 3.12")

    def tags(self) -> list[str]:
        """Platform tags to ask pip for: it compares them literally, so every older glibc is spelt out."""
        match = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", self.platform)
        if not match:
            return [self.platform]
        newest, machine = int(match[1]), match[2]
        tags = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
        tags += [f"{name}_{machine}" for minor, name in _LEGACY.items() if minor <= newest]
        return [*tags, f"linux_{machine}"]

    def arguments(self) -> list[str]:
        """pip's options for this target."""
        platforms = [argument for tag in self.tags() for argument in ("--platform", tag)]
        return ["--only-binary=:all:", "--implementation", "cp", "--python-version", self.python, *platforms]


def command(requirement: str, target: Target, folder: Path, extra: tuple[str, ...] = ()) -> list[str]:
    """The pip command that saves the wheel of `requirement` alone, without its dependencies, into `folder`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    return [*pip, *target.arguments(), *extra, "--dest", str(folder), requirement]


def download(requirement: str, target: Target, folder: Path, extra: tuple[str, ...] = ()) -> None:
    """Save the wheel of `requirement` into `folder`, pip's progress on the terminal.

    Raises UserError with one sentence when pip fails.
    """
    _run(command(requirement, target, folder, extra), requirement, target, folder, {})


def download_source(requirement: str, target: Target, folder: Path, environment: Mapping[str, str]) -> None:
    """Save the source archive of `requirement`; pip runs its set-up for the metadata, in this interpreter.

    Raises UserError with one sentence when pip fails.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    source = ["--no-binary=:all:", "--no-build-isolation", "--dest", str(folder), requirement]
    _run([*pip, *source], requirement, target, folder, environment)


def _run(arguments: list[str], requirement: str, target: Target, folder: Path, environment: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(arguments, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise UserError(_explain(requirement, target, done.stderr))


def _explain(requirement: str, target: Target, stderr: str) -> str:
    if "No matching distribution found" in stderr:
        return (
            f"{requirement}: no wheel for Python {target.python} on {target.platform}; "
            "name another PLATFORM, PY or version"
        )
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else (stderr.strip().splitlines() or ["pip gave no reason"])[-1]
    return f"{requirement}: pip could not download it: {reason}"


def is_whole(archive: Path) -> bool:
    """Whether the file is a complete wheel or source archive; a torn download is not."""
    if archive.suffix == ".whl":
        return zipfile.is_zipfile(archive)
    try:
        with tarfile.open(archive) as tar:
            tar.getmembers()
    except (tarfile.TarError, EOFError, OSError):
        return False
    return True
