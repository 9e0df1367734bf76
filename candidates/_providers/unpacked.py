"""Where upstream packages lie, and what a machine lacks to run their kernels: cheap questions, nothing imported."""

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import torch

from harness.provision.packages import Package
from harness.provision.providers import is_present, root


def folder(package: Package) -> Path | None:
    """The package's folder under the providers folder, or None when it is not there whole."""
    path = root() / package.folder
    return path if is_present(package, path) else None


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported; asked before any stand-in takes its name."""
    return importlib.util.find_spec(module) is not None


def version_of(package: Package, module: str) -> str | None:
    """Version of the installed distribution, else of the unpacked one, else None."""
    if is_installed(module):
        try:
            return importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            return None
    return package.version if folder(package) else None


def put_on_path(path: Path) -> None:
    """Make the modules in `path` importable, after what is installed."""
    if str(path) not in sys.path:
        sys.path.append(str(path))


def lacks_gpu(why: str = "") -> str | None:
    """A sentence when torch sees no NVIDIA GPU."""
    if torch.version.cuda is not None and torch.cuda.is_available():
        return None
    return f"needs an NVIDIA GPU{why}"


def lacks_package(package: Package, module: str) -> str | None:
    """A sentence when the package is neither installed nor unpacked."""
    if is_installed(module) or folder(package):
        return None
    return f"{package.requirement} is not there: run `make providers`"


def lacks_modules(package: Package, *names: str) -> str | None:
    """A sentence when modules that the unpacked package imports are absent."""
    absent = [name for name in names if not is_installed(name)]
    if not absent:
        return None
    return f"{package.name} needs the Python modules {', '.join(absent)}: pip install them (offline: `make wheelhouse`)"


def lacks_toolchain(package: Package) -> str | None:
    """A sentence when kernels that are compiled on first use cannot be."""
    absent = [tool for tool, path in (("nvcc", _nvcc()), ("ninja", _ninja())) if path is None]
    if not absent:
        return None
    return f"{package.name} compiles this kernel on first use and {' and '.join(absent)} cannot be found: install it"


def _nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return shutil.which("nvcc") or next((p for h in homes if h and (p := shutil.which("nvcc", path=f"{h}/bin"))), None)


def _ninja() -> str | None:
    return shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))


def use_toolchain() -> None:
    """Let compiling packages find ninja when it lies beside an interpreter whose environment is not activated."""
    beside = str(Path(sys.executable).parent)
    if shutil.which("ninja") is None and shutil.which("ninja", path=beside):
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}{os.pathsep}{beside}"
