"""vllm: its compiled library alone, which registers `torch.ops._C` without the vllm package.

Taken from $HARNESS_VLLM_SO, else an installed vllm, else the unpacked wheel. The library uses torch's stable ABI; the
pinned one is built for torch 2.11 and newer.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import VLLM

LIBRARY = "_C_stable_libtorch.abi3.so"
ENV_PATH = "HARNESS_VLLM_SO"


def library() -> Path | None:
    """The library that `operator` loads, or None; a path in $HARNESS_VLLM_SO is taken at its word."""
    if named := os.environ.get(ENV_PATH):
        return Path(named)
    if unpacked.is_installed("vllm"):
        spec = importlib.util.find_spec("vllm")
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    else:
        path = unpacked.folder(VLLM)
        folders = [path / "vllm"] if path else []
    return next((folder / LIBRARY for folder in folders if (folder / LIBRARY).is_file()), None)


def _missing() -> str | None:
    if gap := unpacked.lacks_gpu():
        return gap
    path = library()
    if path is None:
        if unpacked.is_installed("vllm"):
            return f"the installed vllm has no {LIBRARY}: install vllm {VLLM.version} or newer, or set {ENV_PATH}"
        return unpacked.lacks_package(VLLM, "vllm")
    if not path.is_file():
        return f"{ENV_PATH}={path} is no file"
    return None


def _version() -> str | None:
    if ENV_PATH in os.environ:
        return f"unknown ({ENV_PATH})"
    return unpacked.version_of(VLLM, "vllm")


PROVIDER = Provider("vllm", _missing, _version)


@functools.cache
def operator(name: str) -> Callable[..., Any]:
    """`torch.ops._C.<name>`, the library loaded."""
    path = library()
    if path is None:
        raise RuntimeError(f"{VLLM.requirement} is not there: run `make providers`")
    torch.ops.load_library(str(path))
    found: Callable[..., Any] = getattr(torch.ops._C, name)
    return found
