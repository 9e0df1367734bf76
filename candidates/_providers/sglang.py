"""sglang: an installed one, else its kernels alone, unpacked, with stand-ins for the server that surrounds them.

`import sglang` pulls in some thirty packages and pins another torch; its kernels need torch, Triton, NumPy and
msgspec. They ask their surroundings a few questions (which platform, how to register a custom op), which the
stand-ins answer. The platform is fixed at import: on a CPU sglang rebinds its functions to PyTorch in silence, so
this provider then counts as missing. With grad mode on, its GroupNorm falls back to aten just as silently; candidates
name the kernels that must be seen.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import SGLANG

_NO_FALLBACK = ": on a CPU sglang replaces its kernels by PyTorch in silence"
_OTHER_PLATFORMS = ("npu", "hip", "xpu", "musa", "cpu", "mps")
_AMD_ARCHITECTURES = ("gfx942", "gfx95", "gfx1250")


def _missing() -> str | None:
    return (
        unpacked.lacks_gpu(_NO_FALLBACK)
        or unpacked.lacks_package(SGLANG, "sglang")
        or unpacked.lacks_modules(SGLANG, "msgspec")
    )


def _missing_for_jit() -> str | None:
    return _missing() or unpacked.lacks_modules(SGLANG, "tvm_ffi") or unpacked.lacks_toolchain(SGLANG)


def _version() -> str | None:
    return unpacked.version_of(SGLANG, "sglang")


PROVIDER = Provider("sglang", _missing, _version)
JIT_PROVIDER = Provider("sglang", _missing_for_jit, _version)
"""The same package, for its kernels in CUDA that are compiled on first use."""


@functools.cache
def function(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of the module `sglang.kernels.<module>`.

    Raises RuntimeError when sglang has bound it to a fallback instead of a kernel.
    """
    _make_importable()
    found: Callable[..., Any] = getattr(importlib.import_module(f"sglang.kernels.{module}"), name)
    if "fallback" in getattr(found, "__qualname__", ""):
        raise RuntimeError(f"sglang bound {name} to {found.__qualname__}: it did not see an NVIDIA GPU at import")
    return found


@functools.cache
def _make_importable() -> None:
    if unpacked.is_installed("sglang"):
        return
    path = unpacked.folder(SGLANG)
    if path is None:
        raise RuntimeError(f"{SGLANG.requirement} is not there: run `make providers`")
    unpacked.use_toolchain()
    install_stand_ins(path / "sglang")


def install_stand_ins(package: Path) -> None:
    """Enter into `sys.modules` the few modules that sglang's kernels import from the rest of sglang.

    `package` is the unpacked folder `sglang/`; what the stand-ins do not name is imported from there.
    """
    platform = {"is_cuda": _yes, **{f"is_{other}": _no for other in _OTHER_PLATFORMS}}
    common = {
        **platform,
        **{f"is_{architecture}_supported": _no for architecture in _AMD_ARCHITECTURES},
        "direct_register_custom_op": register_custom_op,
        "get_cuda_version": _cuda_version,
        "torch_release": tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:3]),
        "ceil_align": _ceil_align,
        "ceil_div": _ceil_div,
    }
    _stand_in("sglang", [package], {})
    _stand_in("sglang.srt", [package / "srt"], {})
    _stand_in("sglang.srt.utils", [package / "srt" / "utils"], common)
    _stand_in("sglang.srt.utils.common", None, common)
    for parent in ("sglang.multimodal_gen", "sglang.multimodal_gen.runtime"):
        _stand_in(parent, [], {})
    _stand_in("sglang.multimodal_gen.runtime.platforms", None, {"current_platform": SimpleNamespace(**platform)})


def _stand_in(name: str, path: Sequence[Path] | None, names: dict[str, Any]) -> None:
    module = ModuleType(name, f"Stand-in for {name}, see {__name__}.")
    module.__spec__ = ModuleSpec(name, None, is_package=path is not None)
    if path is not None:
        module.__path__ = [str(folder) for folder in path]
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


def _cuda_version() -> tuple[int, ...]:
    return tuple(int(part) for part in (torch.version.cuda or "0.0").split("."))


def _ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def _ceil_align(x: int, y: int) -> int:
    return _ceil_div(x, y) * y


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("sglang", "FRAGMENT")


def register_custom_op(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: list[str],
    fake_impl: Callable[..., Any] | None = None,
    target_lib: torch.library.Library | None = None,
) -> None:
    """Register `torch.ops.sglang.<op_name>` for CUDA, as sglang's own function of that name does."""
    library = target_lib or _library()
    library.define(op_name + torch.library.infer_schema(op_func, mutates_args=mutates_args))
    library.impl(op_name, op_func, "CUDA")
    if fake_impl is not None:
        torch.library.register_fake(f"sglang::{op_name}", fake_impl, lib=library)
