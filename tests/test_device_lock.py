"""Which device a run will be on, told without starting anything on it; whose lock cannot be opened."""

import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import device_lock
from harness.device_lock import DeviceLock, device_count, expected_uuid
from harness.errors import UnfitError


@pytest.fixture(autouse=True)
def _nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs."""

    class NVMLError(Exception):
        pass

    def handle(index: int) -> int:
        if index > 1:
            raise NVMLError
        return index

    stub = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=lambda index: ("GPU-aaa", b"GPU-bbb")[index],
        NVMLError=NVMLError,
    )
    monkeypatch.setitem(sys.modules, "pynvml", stub)


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [(None, "aaa"), ("0", "aaa"), ("1,0", "bbb"), ("GPU-ccc,0", "ccc"), ("2", None), ("", None), ("MIG-1", None)],
)
def test_expected_gpu(visible: str | None, uuid: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert expected_uuid("cuda") == uuid


@pytest.mark.parametrize(
    ("visible", "uuids", "count"),
    [(None, ("aaa", "bbb", None), 2), ("1,0", ("bbb", "aaa", None), 2), ("1", ("bbb", None, None), 1)],
)
def test_each_rank_has_a_gpu_of_its_own(
    visible: str | None, uuids: tuple[str | None, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert tuple(expected_uuid("cuda", rank) for rank in range(3)) == uuids
    assert device_count("cuda") == count


def test_two_ranks_can_be_rehearsed_on_any_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert device_count("cpu") == 2


def test_expected_cpu_is_the_machine() -> None:
    assert expected_uuid("cpu") == platform.node()


def test_lock_that_cannot_be_opened_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)
    (tmp_path / "dit-kernel-harness-aaa.lock").mkdir()
    with pytest.raises(UnfitError, match=r"the device's lock .*aaa\.lock cannot be opened \(.*\): another user's run"):
        DeviceLock().hold("aaa")


def test_locks_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)
    first, second = DeviceLock(), DeviceLock()
    first.hold("aaa")
    first.hold("aaa")
    with pytest.raises(UnfitError, match="another run"):
        second.hold("aaa")
    first.release()
    second.hold("aaa")
    second.release()
