"""flash-attention: its Triton rotary kernel alone, unpacked from the source archive, else of an installed flash-attn.

The unpacked one comes first: a package that is called flash_attn need not have this module (flash-attn 4 does not).
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import FLASH_ATTN

_MODULE = "flash_attn.ops.triton.rotary"


def _missing() -> str | None:
    return unpacked.lacks_gpu() or unpacked.lacks_package(FLASH_ATTN, "flash_attn")


def _version() -> str | None:
    return FLASH_ATTN.version if unpacked.folder(FLASH_ATTN) else unpacked.version_of(FLASH_ATTN, "flash_attn")


PROVIDER = Provider("flash_attn", _missing, _version)


@functools.cache
def rotary(name: str) -> Callable[..., Any]:
    """The function `name` of flash-attn's Triton rotary module, which needs torch and Triton alone."""
    path = unpacked.folder(FLASH_ATTN)
    if path is None:
        module = importlib.import_module(_MODULE)
    else:
        file = path.joinpath(*_MODULE.split(".")).with_suffix(".py")
        spec = importlib.util.spec_from_file_location(f"{__name__}_rotary", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found
