"""The upstream packages whose kernels are candidates, pinned, and what of each is kept.

They do not resolve in one environment (sglang pins another torch than vllm's library is built for), so each is taken
without its dependencies into its own folder, and nothing of theirs is committed.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

ANY_LINUX = "manylinux_2_39"
"""Newest glibc whose wheels are taken: nothing kept is compiled against it except where the package says so."""


@dataclass(frozen=True)
class Package:
    """One distribution, unpacked into `<name>-<version>/` of the providers folder."""

    name: str
    version: str
    python: str
    """Python tag of the wheel to take; what is kept of it runs on every Python the harness supports."""
    keep: tuple[str, ...]
    """Glob patterns of members to unpack; `*` also matches `/`."""
    sha256: dict[str, str] = field(default_factory=dict)
    """File name to digest, of the wheels (or source archive) that evidence was made with."""
    note: str = ""
    source: bool = False
    """Taken from the source archive, of which there is no wheel; `keep` is relative to the folder in it."""
    environment: dict[str, str] = field(default_factory=dict)
    """For pip, which runs a source archive's set-up for its metadata."""
    distribution: str = ""
    """What pip calls it, where `name` is taken by another version of it."""

    @property
    def folder(self) -> str:
        """Folder name under the providers folder."""
        return f"{self.name}-{self.version}"

    @property
    def requirement(self) -> str:
        """As pip wants it."""
        return f"{self.distribution or self.name}=={self.version}"

    def keeps(self, member: str) -> bool:
        """Whether a member of the wheel is unpacked."""
        return not member.endswith("/") and any(fnmatchcase(member, pattern) for pattern in self.keep)

    def record(self, wheel: str, sha256: str) -> dict[str, Any]:
        """What the folder's stamp says; a different record means that the folder is out of date."""
        return {"wheel": wheel, "sha256": sha256, "keep": list(self.keep)}


SGLANG = Package(
    name="sglang",
    version="0.5.23",
    python="3.12",
    keep=(
        "sglang/kernels/*",
        "sglang/srt/environ.py",
        "sglang/srt/utils/custom_op.py",
        "sglang/srt/utils/patch_torch.py",
        "*.dist-info/*",
    ),
    sha256={
        "sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl": (
            "8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6"
        ),
    },
    note="kernels only, pure Python and CUDA sources",
)
FLASHINFER = Package(
    name="flashinfer-python",
    version="0.6.13",
    python="3.12",
    keep=("*",),
    sha256={
        "flashinfer_python-0.6.13-py3-none-any.whl": (
            "239e6ddc3cbbaf0bee251861a8c7c69438b1171830d69ddfa133ddea4494850d"
        ),
    },
    note="CUDA sources, compiled on first use",
)
FLASHINFER_IPC = Package(
    name="flashinfer-ipc",
    distribution="flashinfer-python",
    version="0.6.8.post1",
    python="3.12",
    keep=("*",),
    sha256={
        "flashinfer_python-0.6.8.post1-py3-none-any.whl": (
            "818f9b8cc2fe66c42a1f6264be4841ac8821ada703685a02cfccb2b5124a710b"
        ),
    },
    note="the last whose fused all-reduce maps its peers by CUDA IPC alone; compiled on first use",
)
VLLM = Package(
    name="vllm",
    version="0.22.1",
    python="3.12",
    keep=("vllm/_C_stable_libtorch.abi3.so", "*.dist-info/licenses/*", "*.dist-info/METADATA"),
    sha256={
        "vllm-0.22.1-cp38-abi3-manylinux_2_28_x86_64.whl": (
            "cc50536c93827a577b2bc45f038b8b866c31ed220631008521a337c9b2558f4d"
        ),
    },
    note="one library out of a 261 MB wheel",
)
VLLM_OMNI = Package(
    name="vllm-omni",
    version="0.30.0",
    python="3.12",
    keep=("vllm_omni/diffusion/layers/*", "*.dist-info/*"),
    sha256={
        "vllm_omni-0.30.0-py3-none-any.whl": "141cb0c7b9c07970e5c92a99aab9696e81682dbfa3d2bfcde359c3c1533385f4",
    },
    note="its diffusion layers, pure Python and Triton",
)
SGL_KERNEL = Package(
    name="sglang-kernel",
    version="0.4.5",
    python="3.12",
    keep=("sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/sm100/common_ops.abi3.so", "*.dist-info/*"),
    sha256={
        "sglang_kernel-0.4.5-cp310-abi3-manylinux2014_x86_64.whl": (
            "5927a14dfff92ced8b1f7c7d5844144bc574ec58e604d4fd53e6f53c709003a8"
        ),
    },
    note="two libraries out of a 383 MB wheel",
)
LIGER = Package(
    name="liger-kernel",
    version="0.8.5",
    python="3.12",
    keep=("*",),
    sha256={
        "liger_kernel-0.8.5-py3-none-any.whl": "60789cd576af073ab9b192b570d2597fd0cdad489cd62fb44fb16256d43754c9",
    },
    note="Triton",
)
FLASH_ATTN = Package(
    name="flash-attn",
    version="2.8.3.post2",
    python="3.12",
    keep=("flash_attn/ops/triton/rotary.py", "LICENSE"),
    sha256={
        "flash_attn-2.8.3.post2.tar.gz": "d0f9f0b08a986cdeadbffcf5ec8b3a8f514366c68ad1853d3ab061bc83cc340b",
    },
    note="one Triton module out of the source archive; pip wants torch in its own interpreter",
    source=True,
    environment={"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"},
)

PACKAGES: tuple[Package, ...] = (SGLANG, VLLM_OMNI, FLASH_ATTN, FLASHINFER_IPC, FLASHINFER, LIGER, VLLM, SGL_KERNEL)
"""Smallest download first."""
