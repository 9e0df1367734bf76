"""liger-kernel: an installed one, else unpacked. Triton kernels that need torch, Triton and packaging alone."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import LIGER


def _missing() -> str | None:
    return (
        unpacked.lacks_gpu()
        or unpacked.lacks_package(LIGER, "liger_kernel")
        or unpacked.lacks_modules(LIGER, "packaging")
    )


def _version() -> str | None:
    return unpacked.version_of(LIGER, "liger_kernel")


PROVIDER = Provider("liger", _missing, _version)


@functools.cache
def function(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of the module `liger_kernel.ops.<module>`."""
    if not unpacked.is_installed("liger_kernel"):
        path = unpacked.folder(LIGER)
        if path is None:
            raise RuntimeError(f"{LIGER.requirement} is not there: run `make providers`")
        unpacked.put_on_path(path)
    found: Callable[..., Any] = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
    return found
