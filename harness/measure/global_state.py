"""Settings of the whole process that a candidate must leave as they are: torch's, Inductor's, Dynamo's, environment.

A candidate that switches TF32 on, or Dynamo off, changes what every arm beside it computes and how fast. Its module's
import, its `prepare` and its calls are each watched: what changed is put back at once, and the sentence that names it
takes the candidate out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

Values = dict[str, Any]
"""Setting to value."""

_CONFIGS = ("torch._inductor.config", "torch._dynamo.config")
_NEUTRAL = frozenset({"torch._inductor.config.compile_threads", "torch._inductor.config.worker_start_method"})
"""How many compile at once: torch sets it by itself, and no time depends on it."""
_STEERS = re.compile(r"(TORCH|PYTORCH|INDUCTOR|TRITON|CUBLAS|CUDNN|CUDA_|NVIDIA_|OMP_|MKL_|KMP_|ONEDNN_|DNNL_)")
_PLACE = re.compile(
    r"(PATH|DIR|HOME|ROOT|MANAGER|_ARCH_LIST|^CUDA_MODULE_LOADING|^KMP_DUPLICATE_LIB_OK|^KMP_INIT_AT_FORK)$"
)
"""Environment variables that say where tools and caches lie or what is built; packages set them for themselves, torch
one as it starts CUDA, and Inductor two of OpenMP's as it starts its compile workers."""
_SHOWN = 3


@dataclass(frozen=True)
class _Setting:
    """One setting: how it is read and put back."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _attribute(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _settings() -> dict[str, _Setting]:
    """In the order to write them back: a setting comes before those that it drags along."""
    backends, matmul = torch.backends, torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn  # a module that torch replaces by an object with more
    mkldnn: Any = torch.backends.mkldnn
    return {
        "the default dtype": _Setting(torch.get_default_dtype, torch.set_default_dtype),
        "the default device": _Setting(
            torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device)
        ),
        "grad mode": _Setting(torch.is_grad_enabled, torch.set_grad_enabled),
        "anomaly detection": _Setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        "autocast on cuda": _Setting(
            lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)
        ),
        "autocast on cpu": _Setting(
            lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)
        ),
        "deterministic algorithms": _Setting(
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        "torch.utils.deterministic.fill_uninitialized_memory": _attribute(
            torch.utils.deterministic, "fill_uninitialized_memory"
        ),
        "the number of threads": _Setting(torch.get_num_threads, torch.set_num_threads),
        "float32 matmul precision": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "torch.backends.fp32_precision": _attribute(backends, "fp32_precision"),
        "torch.backends.cuda.matmul.fp32_precision": _attribute(matmul, "fp32_precision"),
        "torch.backends.cudnn.fp32_precision": _attribute(cudnn, "fp32_precision"),
        "torch.backends.cudnn.conv.fp32_precision": _attribute(cudnn.conv, "fp32_precision"),
        "torch.backends.cudnn.rnn.fp32_precision": _attribute(cudnn.rnn, "fp32_precision"),
        "torch.backends.mkldnn.fp32_precision": _attribute(mkldnn, "fp32_precision"),
        "torch.backends.mkldnn.matmul.fp32_precision": _attribute(mkldnn.matmul, "fp32_precision"),
        **{
            f"torch.backends.cuda.matmul.{name}": _attribute(matmul, name)
            for name in (
                "allow_fp16_reduced_precision_reduction",
                "allow_bf16_reduced_precision_reduction",
                "allow_fp16_accumulation",
            )
        },
        **{
            f"torch.backends.cudnn.{name}": _attribute(cudnn, name)
            for name in ("enabled", "benchmark", "deterministic")
        },
        **{
            f"torch.backends.cuda.{kind}_sdp": _Setting(
                getattr(backends.cuda, f"{kind}_sdp_enabled"), getattr(backends.cuda, f"enable_{kind}_sdp")
            )
            for kind in ("flash", "mem_efficient", "math", "cudnn")
        },
        "torch.backends.cuda.preferred_blas_library": _Setting(
            backends.cuda.preferred_blas_library, backends.cuda.preferred_blas_library
        ),
        "torch.compiler's stance": _Setting(_stance, _set_stance),
    }


def _stance() -> Any:
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return "default" if frames is None else frames._stance.stance


def _set_stance(stance: str) -> None:
    torch.compiler.set_stance(stance)


_SETTINGS = _settings()


def load_configs() -> None:
    """Import Inductor's and Dynamo's settings, so that changes to them are seen from now on."""
    import torch._dynamo.config
    import torch._inductor.config  # noqa: F401


def flags() -> Values:
    """torch's own settings; takes some 50 µs."""
    return {name: _read(setting) for name, setting in _SETTINGS.items()}


def snapshot() -> Values:
    """All settings watched; of Inductor and Dynamo those of modules that are loaded."""
    values = flags()
    for module in _CONFIGS:
        if module in sys.modules:
            values |= {f"{module}.{key}": value for key, value in sys.modules[module].get_config_copy().items()}
    return values | {f"${name}": value for name, value in os.environ.items() if _steers(name)}


def _steers(name: str) -> bool:
    return _STEERS.match(name) is not None and _PLACE.search(name) is None


def _read(setting: _Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:
        return "inconsistent"  # torch refuses to say where its old and its new switches for TF32 contradict each other


def changes(before: Values, after: Values) -> dict[str, tuple[Any, Any]]:
    """Settings that differ, with their values before and after; None stands for one that is not set."""
    loaded = {module for module in _CONFIGS if any(key.startswith(f"{module}.") for key in before)}
    return {
        key: (before.get(key), after.get(key))
        for key in {**before, **after}
        if key not in _NEUTRAL
        and (key in before or key.startswith("$") or any(key.startswith(f"{module}.") for module in loaded))
        and not _same(before.get(key), after.get(key))
    }


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # a value that cannot be compared
        return False


def put_back(before: Values, changed: Mapping[str, object]) -> None:
    """Write the values from before; with one of torch's own settings all are written, since they drag each other."""
    if any(key in _SETTINGS for key in changed):
        for name, setting in _SETTINGS.items():
            if not _same(_read(setting), before[name]):
                with suppress(RuntimeError):
                    setting.write(before[name])
    for key in changed:
        if key.startswith("$"):
            if before.get(key) is None:
                os.environ.pop(key[1:], None)
            else:
                os.environ[key[1:]] = before[key]
        elif key not in _SETTINGS:
            module = next(module for module in _CONFIGS if key.startswith(f"{module}."))
            setattr(sys.modules[module], key.removeprefix(f"{module}."), before[key])


def said(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """`changes global settings: torch.backends.cudnn.benchmark False -> True`, or "" where nothing changed."""
    if not changed:
        return ""
    shown = [f"{key} {_short(was)} -> {_short(now)}" for key, (was, now) in list(changed.items())[:_SHOWN]]
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"changes global settings: {', '.join(shown)}{more}"


def _short(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass
class Watched:
    """What a step changed, once it is over."""

    changed: str = ""


@contextmanager
def watched() -> Iterator[Watched]:
    """Put back whatever the body changes, also when it raises, and say what it was."""
    before, found = snapshot(), Watched()
    try:
        yield found
    finally:
        changed = changes(before, snapshot())
        put_back(before, changed)
        found.changed = said(changed)
