"""vllm-omni's own Triton kernels: an installed one, else its diffusion layers alone, with stand-ins for the rest.

Its layers ask vllm which platform they run on and how to register a custom op; the stand-ins answer. Modules of a vllm
that is installed are used as they are.
"""

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from candidates._providers import unpacked
from candidates._providers.sglang import register_custom_op
from harness.op import Provider
from harness.provision.packages import VLLM_OMNI


def _missing() -> str | None:
    return unpacked.lacks_gpu() or unpacked.lacks_package(VLLM_OMNI, "vllm_omni")


def _version() -> str | None:
    return unpacked.version_of(VLLM_OMNI, "vllm_omni")


PROVIDER = Provider("vllm_omni", _missing, _version)


@functools.cache
def function(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of the module `vllm_omni.diffusion.layers.<module>`."""
    if not unpacked.is_installed("vllm_omni"):
        path = unpacked.folder(VLLM_OMNI)
        if path is None:
            raise RuntimeError(f"{VLLM_OMNI.requirement} is not there: run `make providers`")
        _install_stand_ins(path / "vllm_omni", with_vllm=not unpacked.is_installed("vllm"))
    found: Callable[..., Any] = getattr(importlib.import_module(f"vllm_omni.diffusion.layers.{module}"), name)
    return found


@functools.cache
def _install_stand_ins(package: Path, with_vllm: bool) -> None:
    """Enter into `sys.modules` what the layers import from outside their folder, `package`/diffusion/layers."""
    import triton
    import triton.language as tl

    platform = SimpleNamespace(is_cuda=lambda: True, is_npu=lambda: False)
    if with_vllm:
        _stand_in("vllm", [])
        _stand_in("vllm.logger", None, init_logger=logging.getLogger)
        _stand_in("vllm.platforms", None, current_platform=platform)
        _stand_in("vllm.triton_utils", None, HAS_TRITON=True, tl=tl, triton=triton)
        _stand_in("vllm.utils", [])
        _stand_in("vllm.utils.torch_utils", None, direct_register_custom_op=register_custom_op)
    _stand_in("vllm_omni", [package])
    _stand_in("vllm_omni.platforms", None, current_omni_platform=platform)
    _stand_in("vllm_omni.diffusion", [package / "diffusion"])
    # the real one asks the platform for devices at import; None is each variable's default
    _stand_in("vllm_omni.diffusion.envs", None, VLLM_OMNI_FUSED_QK_NORM_ROPE_MIN_TOKENS=None)


def _stand_in(name: str, path: list[Path] | None, **names: Any) -> None:
    module = ModuleType(name, f"Stand-in for {name}, see {__name__}.")
    module.__spec__ = ModuleSpec(name, None, is_package=path is not None)
    if path is not None:
        module.__path__ = [str(folder) for folder in path]
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
