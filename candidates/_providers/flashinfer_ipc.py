"""flashinfer 0.6.8.post1, unpacked: the last whose fused all-reduce maps its peers by CUDA IPC alone, no multicast.

Newer versions are another provider's (`flashinfer`), and one process can import one of them. A worker measures one
op, and the candidates of `allreduce_rmsnorm` take all they use of flashinfer, its norm too, from this one. Where
another is imported already, `function` says so.

Its module `trtllm_comm` takes minutes to compile, once: flashinfer keeps it in `~/.cache/flashinfer/0.6.8.post1/`
(below $FLASHINFER_WORKSPACE_BASE where that is set), which may be copied between hosts of one architecture.
`python -m candidates._providers.flashinfer_ipc` compiles it ahead; without a GPU it needs
FLASHINFER_CUDA_ARCH_LIST=9.0a.
"""

import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from candidates._providers import unpacked
from harness.op import Provider
from harness.provision.packages import FLASHINFER_IPC


def _elsewhere() -> str | None:
    """A sentence when another flashinfer has been imported in this process."""
    module = sys.modules.get("flashinfer")
    folder = unpacked.folder(FLASHINFER_IPC)
    if module is None or folder is None or folder in Path(str(module.__file__)).parents:
        return None
    version = getattr(module, "__version__", "of another version")
    return f"flashinfer {version} is imported in this process, and only one can be: this needs {FLASHINFER_IPC.version}"


def _missing() -> str | None:
    if gap := unpacked.lacks_gpu():
        return gap
    if unpacked.folder(FLASHINFER_IPC) is None:
        return f"{FLASHINFER_IPC.requirement} is not there: run `make providers`"
    return (
        _elsewhere()
        or unpacked.lacks_modules(FLASHINFER_IPC, "tvm_ffi", "packaging", "pynvml", "tqdm", "requests", "cuda")
        or unpacked.lacks_toolchain(FLASHINFER_IPC)
    )


def _version() -> str | None:
    return FLASHINFER_IPC.version if unpacked.folder(FLASHINFER_IPC) else None


PROVIDER = Provider("flashinfer_ipc", _missing, _version)


@functools.cache
def function(module: str, name: str) -> Any:
    """What `flashinfer.<module>` calls `name`. Raises RuntimeError where another flashinfer came first."""
    if problem := _elsewhere():
        raise RuntimeError(problem)
    os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"
    unpacked.use_toolchain()
    path = unpacked.folder(FLASHINFER_IPC)
    if path is None:
        raise RuntimeError(f"{FLASHINFER_IPC.requirement} is not there: run `make providers`")
    # before an installed one
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    return getattr(importlib.import_module(f"flashinfer.{module}"), name)


def build() -> None:
    """Compile what the fused all-reduce needs, where flashinfer keeps it."""
    specification: Callable[[], Any] = function("jit.comm", "gen_trtllm_comm_module")
    specification().build_and_load()


if __name__ == "__main__":
    build()
