"""Says in one sentence each what this machine lacks, before anything is installed.

    python -m harness.provision.preflight venv     before .venv is made with this interpreter
    python -m harness.provision.preflight use      before this interpreter is used as it is (PYTHON=...)

Exit code 0, or 5 (environment unfit) with one line per lack. `make` checks the Python version itself.
"""

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from harness.errors import ExitCode
from harness.provision.providers import REPOSITORY

_IMPORTED_AS = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "markdown-it-py": "markdown_it"}


def compiler_lacks(include: Path) -> list[str]:
    """What `torch.compile` and Triton, which build C++ and C on this machine, would miss."""
    lacks = []
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        lacks.append(
            f"no C++ compiler ({compiler}) is on the PATH and torch.compile needs one: install g++ (Debian, Ubuntu: "
            "apt install g++) or name another with CXX"
        )
    if not (include / "Python.h").exists():
        lacks.append(
            f"{include}/Python.h is missing: install Python's headers (Debian, Ubuntu: apt install python3-dev)"
        )
    return lacks


def venv_lacks() -> list[str]:
    """Debian ships Python without what `python3 -m venv` needs."""
    if importlib.util.find_spec("ensurepip") is not None:
        return []
    return [f"{sys.executable} cannot make a virtual environment (Debian, Ubuntu: apt install python3-venv)"]


def package_lacks(pyproject: Path) -> list[str]:
    """Base dependencies that an interpreter used as it is does not have."""
    dependencies = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    names = [re.split(r"[<>=!~;\s]", dependency)[0].lower() for dependency in dependencies]
    absent = [name for name in names if importlib.util.find_spec(_IMPORTED_AS.get(name, name)) is None]
    if not absent:
        return []
    return [
        f"{sys.executable} lacks {', '.join(absent)}: install them, or, where the host is offline, collect wheels with "
        "`make wheelhouse` on a connected machine"
    ]


def main(arguments: list[str]) -> int:
    """Print what is missing for `venv` or `use`."""
    lacks = compiler_lacks(Path(sysconfig.get_path("include")))
    lacks += venv_lacks() if arguments == ["venv"] else package_lacks(REPOSITORY / "pyproject.toml")
    for lack in lacks:
        print(f"error: {lack}", file=sys.stderr)
    return ExitCode.UNFIT if lacks else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
