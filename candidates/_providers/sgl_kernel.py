"""sgl_kernel (sglang-kernel): its compiled library alone, which registers `torch.ops.sgl_kernel` without the package.

Taken from an installed sgl_kernel, else the unpacked wheel. There is one library for Hopper and one for what came
after; its Python functions hand over to flashinfer where that is installed, so they are not called.
"""

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import SGL_KERNEL

LIBRARY = "common_ops.abi3.so"
_HOPPER = (9, 0)


def _architecture() -> str:
    """Folder of the library for the GPU in hand: its own loader takes sm100's for everything that is not Hopper."""
    return "sm90" if torch.cuda.get_device_capability() == _HOPPER else "sm100"


def library() -> Path | None:
    """The library that `operator` loads, or None."""
    if unpacked.is_installed("sgl_kernel"):
        spec = importlib.util.find_spec("sgl_kernel")
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    else:
        path = unpacked.folder(SGL_KERNEL)
        folders = [path / "sgl_kernel"] if path else []
    paths = [folder / _architecture() / LIBRARY for folder in folders]
    return next((path for path in paths if path.is_file()), None)


def _missing() -> str | None:
    if gap := unpacked.lacks_gpu():
        return gap
    if (capability := torch.cuda.get_device_capability()) < _HOPPER:
        return (
            f"its library is built for compute capability 9.0 and newer, this GPU has {'.'.join(map(str, capability))}"
        )
    if library() is not None:
        return None
    if unpacked.is_installed("sgl_kernel"):
        return f"the installed sgl_kernel has no {_architecture()}/{LIBRARY}: install {SGL_KERNEL.requirement}"
    if unpacked.folder(SGL_KERNEL):
        return f"{SGL_KERNEL.folder} has no {_architecture()}/{LIBRARY}: run `make providers` again"
    return unpacked.lacks_package(SGL_KERNEL, "sgl_kernel")


PROVIDER = Provider("sgl_kernel", _missing, lambda: unpacked.version_of(SGL_KERNEL, "sgl_kernel"))


@functools.cache
def operator(name: str) -> Callable[..., Any]:
    """`torch.ops.sgl_kernel.<name>`, the library loaded."""
    path = library()
    if path is None:
        raise RuntimeError(f"{SGL_KERNEL.requirement} is not there: run `make providers`")
    torch.ops.load_library(str(path))
    found: Callable[..., Any] = getattr(torch.ops.sgl_kernel, name)
    return found
