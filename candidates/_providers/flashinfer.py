"""flashinfer: an installed one, else unpacked. Its norm kernels are CUDA, compiled on first use.

`FLASHINFER_USE_CUDA_NORM=1` keeps it from preferring its CuTe DSL norms, which need another 88 MB package and are
other kernels than the ones named here.
"""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import FLASHINFER


def _missing() -> str | None:
    return (
        unpacked.lacks_gpu()
        or unpacked.lacks_package(FLASHINFER, "flashinfer")
        or unpacked.lacks_modules(FLASHINFER, "tvm_ffi", "packaging", "pynvml", "tqdm", "requests")
        or unpacked.lacks_toolchain(FLASHINFER)
    )


def _version() -> str | None:
    return unpacked.version_of(FLASHINFER, "flashinfer")


PROVIDER = Provider("flashinfer", _missing, _version)


@functools.cache
def function(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of the module `flashinfer.<module>`."""
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    unpacked.use_toolchain()
    if not unpacked.is_installed("flashinfer"):
        path = unpacked.folder(FLASHINFER)
        if path is None:
            raise RuntimeError(f"{FLASHINFER.requirement} is not there: run `make providers`")
        unpacked.put_on_path(path)
    found: Callable[..., Any] = getattr(importlib.import_module(f"flashinfer.{module}"), name)
    return found
