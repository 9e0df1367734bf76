"""One run at a time holds a device: a lock file named after it, taken before a worker is started on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import UnfitError

_FOLDER = Path("/tmp")
"""One place for all users and jobs of the machine: TMPDIR may differ from job to job."""


class DeviceLock:
    """The locks of one run: on the device it expects, and on the one its worker found."""

    def __init__(self) -> None:
        self._held: dict[str, FileLock] = {}

    def hold(self, uuid: str) -> None:
        """Hold the device's lock until `release`. Raises UnfitError when another run has it."""
        if uuid in self._held:
            return
        path = _FOLDER / f"dit-kernel-harness-{uuid}.lock"
        lock = FileLock(path, mode=0o666)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UnfitError(f"another run of this harness holds the device {uuid} ({path}); wait for it.") from error
        except OSError as error:
            raise UnfitError(
                f"the device's lock {path} cannot be opened ({error.strerror}): another user's run made it; remove it "
                "once that run has ended."
            ) from error
        self._held[uuid] = lock

    def release(self) -> None:
        """Let others run."""
        while self._held:
            self._held.popitem()[1].release()


def device_count(device_type: str) -> int:
    """How many ranks can have a device each, without starting CUDA; on a CPU two at least, for the rehearsal."""
    if device_type == "cpu":
        return max(os.cpu_count() or 1, 2)
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([name for name in visible.split(",") if name.strip()])
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 1


def lacking(what: str, device_type: str, ranks: int, here: int, count: int) -> str:
    """What `count` things of so many ranks need, where there are fewer devices, in a sentence."""
    needs = f"{ranks} GPUs of one host" if device_type == "cuda" else f"{ranks} cores"
    return f"{what} of {ranks} ranks were not run ({count} to measure): they need {needs}, here are {here}."


def expected_uuid(device_type: str, rank: int = 0) -> str | None:
    """The UUID of the device that a rank will most likely find, without starting CUDA; None when that is not clear.

    A worker that merely asked would appear as a foreign process to a run that is on the device.
    """
    if device_type == "cpu":
        return platform.node()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [name.strip() for name in visible.split(",")] if visible is not None else [str(rank)] * (rank + 1)
    wanted = devices[rank] if rank < len(devices) else ""
    if wanted.startswith("GPU-"):
        return wanted.removeprefix("GPU-")
    if not wanted.isdecimal():
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(int(wanted)))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return str(uuid.decode() if isinstance(uuid, bytes) else uuid).removeprefix("GPU-")
