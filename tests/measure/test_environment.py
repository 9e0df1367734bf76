"""Identifiers that survive a reboot, and what is recorded beside them."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness import processes
from harness.measure import environment
from harness.op import Device

CPUINFO = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ {ghz}GHz\ncpu MHz\t\t: {mhz}\n"
H200 = Device(
    type="cuda", name="NVIDIA H200", capability=(9, 0), sm_count=132, l2_bytes=60 << 20, memory_bytes=150_110_011_392
)


def cpu_key(monkeypatch: pytest.MonkeyPatch, *, mhz: str, ghz: str, boot: str, memory_kb: int) -> str:
    files = {
        "/proc/cpuinfo": CPUINFO.format(mhz=mhz, ghz=ghz),
        "/proc/meminfo": f"MemTotal:       {memory_kb} kB\n",
        "/proc/sys/kernel/random/boot_id": boot,
    }
    monkeypatch.setattr(environment, "_read", lambda path: files.get(str(path)))
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 8)
    record = environment.device_record("cpu")
    assert record.boot_id == boot
    return record.key


@pytest.mark.defence("device_key")
def test_cpu_key_is_the_same_at_every_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cpu_key(monkeypatch, mhz="1979.812", ghz="1.98", boot="a", memory_kb=16_384_000)
    second = cpu_key(monkeypatch, mhz="1980.004", ghz="2.00", boot="b", memory_kb=16_371_004)
    assert first == second == "cpu-intel-xeon-8core-16gib"


@pytest.mark.defence("device_key")
@pytest.mark.parametrize(("clock_mhz", "driver"), [(1980, "570.86.15"), (1979, "570.124.06")])
def test_gpu_key_holds_no_clock_and_only_the_drivers_major(
    monkeypatch: pytest.MonkeyPatch, clock_mhz: int, driver: str
) -> None:
    properties = SimpleNamespace(uuid="1111-2222", clock_rate=clock_mhz * 1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(environment, "device", lambda device_type: H200)
    monkeypatch.setattr(environment, "_driver_version", lambda: driver)
    record = environment.device_record("cuda")
    assert record.key == "nvidia-h200-132sm-140gib-driver570"
    assert record.uuid == "1111-2222"


def test_packages_are_those_installed() -> None:
    found = environment.packages()
    assert found["torch"] == torch.__version__
    assert set(found) <= set(environment.PACKAGES)


@pytest.mark.parametrize(
    ("filled", "state"),
    [((), "fresh"), (("inductor",), "kept"), (("triton",), "kept"), (("inductor", "triton"), "kept")],
)
def test_compile_cache_hits_are_told_from_fresh_compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, filled: tuple[str, ...], state: str
) -> None:
    """A hit skips set-up: build times of the two states are not to be compared."""
    root = tmp_path
    for name, variable in (("inductor", "TORCHINDUCTOR_CACHE_DIR"), ("triton", "TRITON_CACHE_DIR")):
        monkeypatch.setenv(variable, str(root / name))
        if name in filled:
            (root / name / "ab").mkdir(parents=True)
    assert processes.compile_cache_state() == state


def test_a_tree_is_dirty_by_its_sources_and_not_by_what_runs_write(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet")
    for name in ("results", "reports", "harness"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "all")
    sha = environment._git_sha(tmp_path)
    assert sha is not None
    assert len(sha) == 40
    for name in ("results", "reports"):
        (tmp_path / name / "a").write_text("2")
    assert environment._git_sha(tmp_path) == sha
    (tmp_path / "harness/a").write_text("2")
    assert environment._git_sha(tmp_path) == f"{sha}+dirty"
