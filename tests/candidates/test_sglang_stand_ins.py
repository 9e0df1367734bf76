"""sglang's kernels without the server around them, each in a process of its own: the platform is fixed at import."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from candidates._providers import unpacked
from harness.provision.packages import SGLANG
from harness.provision.providers import REPOSITORY

KERNELS = {
    "sglang/srt/utils/custom_op.py": """
        import torch
        from sglang.srt.utils.common import direct_register_custom_op

        def register(name, function, mutates, fake):
            direct_register_custom_op(op_name=name, op_func=function, mutates_args=mutates, fake_impl=fake)
            return getattr(torch.ops.sglang, name)
    """,
    "sglang/kernels/__init__.py": "",
    "sglang/kernels/platform.py": """
        from sglang.multimodal_gen.runtime.platforms import current_platform
        from sglang.srt.utils import ceil_align, get_cuda_version, is_gfx95_supported, is_hip
        from sglang.srt.utils.common import is_cuda, is_npu, torch_release

        FACTS = (
            current_platform.is_cuda(), is_cuda(), is_hip(), is_npu(), is_gfx95_supported(),
            current_platform.is_xpu(), torch_release >= (2, 11), ceil_align(5, 4), get_cuda_version(),
        )
    """,
    "sglang/kernels/op.py": """
        import torch
        from sglang.srt.utils.custom_op import register

        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = register("double", double, [], lambda x: torch.empty_like(x))

        def run(x): return op(x)
    """,
    "sglang/kernels/rebound.py": """
        def fallback(): pass
        fallback.__qualname__ = "torch_fallback.norm"
    """,
}


def run_python(script: str) -> str:
    """Output of a script in a fresh interpreter; what it wrote to stderr is in the failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A tiny sglang that asks its surroundings what the real kernels ask."""
    for name, text in KERNELS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "sglang"


def stand_in(package: Path) -> str:
    return f"""
        from pathlib import Path
        from candidates._providers import sglang
        sglang.install_stand_ins(Path({str(package)!r}))
        sglang.unpacked.is_installed = lambda module: True
    """


def test_kernels_see_an_nvidia_platform_and_nothing_else(package: Path) -> None:
    out = run_python(stand_in(package) + "\n        import sglang.kernels.platform as p; print(p.FACTS[:8])")
    assert out == "(True, True, False, False, False, False, True, 8)"


def test_custom_ops_are_registered_for_cuda_with_a_fake(package: Path) -> None:
    out = run_python(
        stand_in(package)
        + """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        import sglang.kernels.op as op
        with FakeTensorMode():
            print(tuple(op.run(torch.empty(3, 2, device="cuda")).shape))
        print(torch._C._dispatch_has_kernel_for_dispatch_key("sglang::double", "CUDA"))
        print(torch._C._dispatch_has_kernel_for_dispatch_key("sglang::double", "CPU"))
        """
    )
    assert out.splitlines() == ["(3, 2)", "True", "False"]


def test_a_function_bound_to_a_fallback_is_refused(package: Path) -> None:
    out = run_python(
        stand_in(package)
        + """
        try:
            sglang.function("rebound", "fallback")
        except RuntimeError as error:
            print(error)
        """
    )
    assert out == "sglang bound fallback to torch_fallback.norm: it did not see an NVIDIA GPU at import"


@pytest.mark.skipif(
    unpacked.folder(SGLANG) is None, reason=f"{SGLANG.requirement} is not unpacked: run `make providers`"
)
@pytest.mark.skipif(not unpacked.is_installed("msgspec"), reason="msgspec is not installed")
def test_the_real_kernels_import_with_the_stand_ins() -> None:
    """On a machine without a GPU too: sglang asks the device for its warp size at import, a made-up one answers."""
    names = [
        ("ops.diffusion.norm.group_norm_silu_triton", "triton_group_norm_silu"),
        ("ops.diffusion.norm.group_norm_silu_twopass_triton", "group_norm_silu_rows"),
        ("ops.diffusion.norm.norm_triton", "rms_norm_fn"),
        ("ops.diffusion.norm.norm_triton", "norm_infer"),
        ("ops.diffusion.norm.rmsnorm_onepass_triton", "triton_one_pass_rms_norm"),
        ("ops.layernorm.norm", "rmsnorm"),
        ("ops.layernorm.norm", "fused_add_rmsnorm"),
        ("ops.layernorm.rmsnorm_hf", "rmsnorm_hf"),
    ]
    out = run_python(
        f"""
        from types import SimpleNamespace
        import torch
        warp = SimpleNamespace(warp_size=32)
        device = SimpleNamespace(get_device_properties=lambda index: warp, current_device=lambda: 0)
        torch.get_device_module = lambda *arguments: device
        from candidates._providers import sglang
        for module, name in {names!r}:
            print(sglang.function(module, name).__name__)
        """
    )
    assert out.splitlines() == [name for _, name in names]
