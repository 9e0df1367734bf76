"""What the harness's own processes need of the operating system, and what they are told by it."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Be killed when the process that started this one ends, however it ends: nothing is left on the GPU."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_forks_at_once() -> None:
    """Let a process that Python code forks off this one end before it returns from the fork.

    A candidate that forks would otherwise leave a second worker behind at every call, each of which forks again.
    Programs started by `subprocess` are no such forks.
    """
    os.register_at_fork(after_in_child=lambda: os._exit(1))


def compile_cache_state() -> str:
    """`fresh` when Inductor's and Triton's cache folders are empty or absent, else `kept`."""
    folders = [Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name in os.environ]
    return "kept" if any(folder.is_dir() and any(folder.iterdir()) for folder in folders) else "fresh"


def worker_environment(cache: Path, device_type: str) -> dict[str, str]:
    """Environment of a measuring process: the person's own, with the compile caches below `cache`."""
    return {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        **(_rehearsal_environment() if device_type == "cpu" else {}),
    }


def _rehearsal_environment() -> dict[str, str]:
    """What a worker on a CPU is told; the person's own settings stand, but for the interpreter."""
    told = {
        # A rehearsal's cache is one core's L2. Two threads that wait for each other at every kernel's end cost a time
        # slice of the operating system whenever something else runs.
        "OMP_NUM_THREADS": "1",
        # Inductor compiles 16 s of C++ to learn whether the compiler knows AVX2 and AVX512F, which all that can build
        # torch's headers do. What newer instructions need is still tried.
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        # One small kernel per graph: a pool of compilers would only import torch once more.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    return {name: os.environ.get(name, value) for name, value in told.items()} | {"TRITON_INTERPRET": "1"}
