"""What the device and the software are, by identifiers that survive a reboot."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from harness.imported import op_sha256
from harness.op import Device
from harness.paths import package_root
from harness.schema.measurement import DeviceRecord, EnvironmentRecord
from harness.sources import harness_sha256

PACKAGES = ("torch", "triton", "flashinfer-python", "apache-tvm-ffi", "vllm", "sglang", "liger-kernel", "flash-attn")
"""Distributions that can move a time."""
_CPU_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_L2_FALLBACK_BYTES = 2 << 20


def current_device_type() -> str:
    """`cuda` where torch sees an NVIDIA GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device(device_type: str) -> Device:
    """What guards may ask."""
    if device_type == "cuda":
        properties = _gpu()
        return Device(
            type="cuda",
            name=properties.name,
            capability=(properties.major, properties.minor),
            sm_count=properties.multi_processor_count,
            l2_bytes=properties.L2_cache_size,
            memory_bytes=properties.total_memory,
        )
    return Device(
        type="cpu",
        name=_cpu_model(),
        capability=(0, 0),
        sm_count=os.cpu_count() or 1,
        l2_bytes=_l2_cache_bytes(),
        memory_bytes=_memory_bytes(),
    )


def device_record(device_type: str) -> DeviceRecord:
    """The device as stored; its key holds only what is the same at every boot (no clocks, no bus ids)."""
    info = device(device_type)
    memory_gib = round(info.memory_bytes / 2**30)
    driver = _driver_version() if device_type == "cuda" else "none"
    major = driver.split(".")[0]
    name = info.name if device_type == "cuda" else f"cpu {info.name}"
    unit = "sm" if device_type == "cuda" else "core"
    parts = [name, f"{info.sm_count}{unit}", f"{memory_gib}gib", *([f"driver{major}"] if device_type == "cuda" else [])]
    return DeviceRecord(
        key="-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts),
        type="cuda" if device_type == "cuda" else "cpu",
        name=info.name,
        sm_count=info.sm_count,
        memory_gib=memory_gib,
        driver_major=major,
        l2_bytes=info.l2_bytes,
        uuid=str(torch.cuda.get_device_properties(None).uuid) if device_type == "cuda" else platform.node(),
        boot_id=_read("/proc/sys/kernel/random/boot_id") or "unknown",
    )


def _gpu() -> Any:
    """Properties of the GPU that this process is on."""
    return torch.cuda.get_device_properties(None)


def environment_record(device_type: str, root: Path, op_id: str, tolerance: dict[str, float]) -> EnvironmentRecord:
    """What is installed and which sources run, for one op. `root` is the project's.

    The harness's hash is that of the package that is running, wherever the root is.
    """
    return EnvironmentRecord(
        packages=packages(),
        python=platform.python_version(),
        driver=_driver_version() if device_type == "cuda" else "none",
        cuda=torch.version.cuda or "none",
        git_sha=_git_sha(root),
        harness_sha256=harness_sha256(package_root()),
        op_sha256=op_sha256(root, op_id, tolerance),
        device=device_record(device_type),
    )


def packages() -> dict[str, str]:
    """Installed versions of PACKAGES."""
    return {name: version for name in PACKAGES if (version := _version(name))}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver_version() -> str:
    import pynvml

    pynvml.nvmlInit()
    version = pynvml.nvmlSystemGetDriverVersion()
    return str(version.decode() if isinstance(version, bytes) else version)


def _git_sha(root: Path) -> str | None:
    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    sha = git("rev-parse", "HEAD")
    if sha is None:
        return None
    # What a run itself writes shapes no number: after the first measurement every other would be `+dirty`.
    written = (":(top,exclude)results", ":(top,exclude)reports")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *written)
    return sha + ("+dirty" if changed else "")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo") or "", re.MULTILINE)
    return re.sub(r"\((R|TM)\)|CPU|@.*$", "", match.group(1)).strip() if match else platform.machine()


def _l2_cache_bytes() -> int:
    """Size of cpu0's level-2 cache."""
    for index in _CPU_CACHE.glob("index*"):
        match = re.fullmatch(r"(\d+)([KM])", _read(f"{index}/size") or "")
        if match and _read(f"{index}/level") == "2":
            return int(match.group(1)) << (10 if match.group(2) == "K" else 20)
    return _CPU_L2_FALLBACK_BYTES


def _memory_bytes() -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo") or "", re.MULTILINE)
    return int(match.group(1)) << 10 if match else 8 << 30
