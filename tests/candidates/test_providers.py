"""What upstream packages say is missing: one sentence with the fix, without importing them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from candidates._providers import flash_attn, flashinfer, liger, sgl_kernel, sglang, unpacked, vllm
from harness.op import Provider
from harness.provision.packages import FLASH_ATTN, FLASHINFER, LIGER, SGL_KERNEL, SGLANG, VLLM, Package
from harness.provision.providers import REPOSITORY, STAMP

PROVIDERS = [
    (sglang.PROVIDER, SGLANG),
    (sglang.JIT_PROVIDER, SGLANG),
    (flashinfer.PROVIDER, FLASHINFER),
    (flash_attn.PROVIDER, FLASH_ATTN),
    (liger.PROVIDER, LIGER),
    (sgl_kernel.PROVIDER, SGL_KERNEL),
    (vllm.PROVIDER, VLLM),
]


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No upstream package installed or unpacked, no library named, but all the modules they need."""
    upstream = {"sglang", "flashinfer", "flash_attn", "vllm", "liger_kernel", "sgl_kernel"}
    monkeypatch.setattr(unpacked, "is_installed", lambda module: module not in upstream)
    monkeypatch.setenv("HARNESS_PROVIDERS", str(tmp_path))
    monkeypatch.delenv(vllm.ENV_PATH, raising=False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(unpacked, "_nvcc", lambda: "/usr/local/cuda/bin/nvcc")
    monkeypatch.setattr(unpacked, "_ninja", lambda: "/usr/bin/ninja")


def unpack(package: Package, root: Path, *files: str) -> Path:
    """A providers folder that holds the package, as `make providers` leaves it."""
    folder = root / package.folder
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    folder.mkdir(parents=True, exist_ok=True)
    keep = ", ".join(f'"{pattern}"' for pattern in package.keep)
    (folder / STAMP).write_text(f'{{"keep": [{keep}]}}')
    return folder


@pytest.mark.parametrize(("provider", "package"), PROVIDERS)
def test_without_a_gpu_that_is_what_is_said(
    provider: Provider, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (provider.missing() or "").startswith("needs an NVIDIA GPU")


def test_sglang_says_why_a_cpu_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = "needs an NVIDIA GPU: on a CPU sglang replaces its kernels by PyTorch in silence"
    assert sglang.PROVIDER.missing() == expected


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("provider", "package"), PROVIDERS)
def test_an_absent_package_is_fetched_with_make_providers(provider: Provider, package: Package) -> None:
    assert provider.missing() == f"{package.requirement} is not there: run `make providers`"
    assert provider.version() is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("provider", "package"), PROVIDERS)
def test_an_unpacked_package_is_enough(provider: Provider, package: Package, tmp_path: Path) -> None:
    unpack(package, tmp_path, f"vllm/{vllm.LIBRARY}", f"sgl_kernel/sm90/{sgl_kernel.LIBRARY}")
    assert provider.missing() is None
    assert provider.version() == package.version


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("provider", "absent"),
    [
        (sglang.PROVIDER, "msgspec"),
        (sglang.JIT_PROVIDER, "tvm_ffi"),
        (flashinfer.PROVIDER, "tvm_ffi"),
        (flashinfer.PROVIDER, "tqdm"),
        (liger.PROVIDER, "packaging"),
    ],
)
def test_modules_that_a_package_imports_are_asked_for(
    provider: Provider, absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in (SGLANG, FLASHINFER, LIGER):
        unpack(package, tmp_path)
    upstream = {"sglang", "flashinfer", "flash_attn", "liger_kernel", absent}
    monkeypatch.setattr(unpacked, "is_installed", lambda module: module not in upstream)
    assert f"needs the Python modules {absent}: pip install them" in (provider.missing() or "")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("provider", [sglang.JIT_PROVIDER, flashinfer.PROVIDER])
def test_kernels_compiled_on_first_use_need_a_compiler(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(SGLANG, tmp_path)
    unpack(FLASHINFER, tmp_path)
    monkeypatch.setattr(unpacked, "_nvcc", lambda: None)
    assert "compiles this kernel on first use and nvcc cannot be found" in (provider.missing() or "")
    monkeypatch.setattr(unpacked, "_ninja", lambda: None)
    assert "nvcc and ninja cannot be found" in (provider.missing() or "")


@pytest.mark.usefixtures("gpu")
def test_a_named_vllm_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(VLLM, tmp_path, f"vllm/{vllm.LIBRARY}")
    named = tmp_path / "my.so"
    monkeypatch.setenv(vllm.ENV_PATH, str(named))
    assert vllm.PROVIDER.missing() == f"HARNESS_VLLM_SO={named} is no file"
    named.touch()
    assert vllm.PROVIDER.missing() is None
    assert vllm.library() == named
    assert vllm.PROVIDER.version() == "unknown (HARNESS_VLLM_SO)"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("capability", "said"),
    [
        ((9, 0), None),
        ((10, 0), "sglang-kernel-0.4.5 has no sm100/common_ops.abi3.so: run `make providers` again"),
        ((8, 9), "its library is built for compute capability 9.0 and newer, this GPU has 8.9"),
    ],
)
def test_sgl_kernel_has_one_library_for_hopper_and_one_for_newer(
    capability: tuple[int, int], said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(SGL_KERNEL, tmp_path, f"sgl_kernel/sm90/{sgl_kernel.LIBRARY}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert sgl_kernel.PROVIDER.missing() == said


@pytest.mark.usefixtures("gpu")
def test_a_half_unpacked_package_does_not_count(tmp_path: Path) -> None:
    (tmp_path / SGLANG.folder / "sglang/kernels").mkdir(parents=True)
    assert "make providers" in (sglang.PROVIDER.missing() or "")


def test_asking_imports_nothing_of_theirs() -> None:
    script = (
        "import sys\n"
        "from candidates._providers import flash_attn, flashinfer, liger, sglang, vllm\n"
        "for module in (flashinfer, liger, sglang, vllm): module.PROVIDER.missing(), module.PROVIDER.version()\n"
        "print(sorted({'sglang', 'flashinfer', 'vllm', 'liger_kernel', 'msgspec', 'tvm_ffi'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ninja_beside_the_interpreter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ninja = tmp_path / "ninja"
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    unpacked.use_toolchain()
    assert unpacked.shutil.which("ninja") == str(ninja)
