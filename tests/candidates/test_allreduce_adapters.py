"""Adapters of all-reduce + RMSNorm on a CPU: upstream's functions are stand-ins that insist on their terms."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from candidates._providers import flashinfer_ipc as ipc_provider
from candidates._providers import sgl_kernel as sgl_kernel_provider
from candidates._providers import sglang as sglang_provider
from candidates._providers import unpacked
from candidates._providers import vllm as vllm_provider
from candidates.allreduce_rmsnorm import flashinfer, inhouse, sgl_kernel, sglang, vllm, vllm_allreduce
from candidates.allreduce_rmsnorm.op import native
from candidates.allreduce_rmsnorm.workspace import PeerMemory
from candidates.rmsnorm.op import native as rmsnorm
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.op import Candidate, Device
from harness.provision.packages import FLASHINFER, FLASHINFER_IPC, PACKAGES
from harness.provision.providers import STAMP
from harness.schema.case import Case, Dtype, Layout
from tests.candidates.allreduce_native import case as tiny

H200 = Device("cuda", "NVIDIA H200", (9, 0), 132, 60 * 2**20, 141 * 2**30)
EPS = 1e-6


def candidates_in(*modules: Any) -> dict[str, Candidate]:
    return {one.id: one for module in modules for one in vars(module).values() if isinstance(one, Candidate)}


UPSTREAM = candidates_in(flashinfer, sgl_kernel, sglang, vllm, vllm_allreduce)
OURS = candidates_in(inhouse)


def case(
    rows: int = 64, width: int = 2048, ranks: int = 2, dtype: Dtype = Dtype.BF16, residual: bool = True,
    layout: Layout = Layout.CONTIGUOUS,
) -> Case:  # fmt: skip
    dims = {"T": rows, "D": width}
    return tiny(1, layout, residual).model_copy(
        update={"dims": dims, "ranks": ranks, "dtype": dtype, "rehearsal": dims}
    )


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a group of one."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield dist.new_group([0]).group_name
    dist.destroy_process_group()


# --- upstream's terms ---------------------------------------------------------------------------------------------


def _in_place(x: Tensor, residual: Tensor, weight: Tensor, eps: float, rounding: str = ONCE) -> None:
    assert x.is_contiguous()
    assert residual.is_contiguous()
    assert x.dtype is residual.dtype is weight.dtype
    residual.add_(x)
    x.copy_(rmsnorm(residual, weight, eps, rounding))


class Upstream:
    """Records how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def note(self, name: str, **given: Any) -> None:
        self.calls.append((name, given))

    def operator(self, name: str) -> Callable[..., Any]:
        assert name in ("fused_add_rms_norm", "fused_add_rmsnorm")
        return lambda x, residual, weight, eps, pdl=None: _in_place(x, residual, weight, eps)

    def flashinfer(self, module: str, name: str) -> Any:
        found = {
            ("norm", "fused_add_rmsnorm"): _in_place,
            ("comm.trtllm_ar", "trtllm_create_ipc_workspace_for_all_reduce_fusion"): self._create,
            ("comm.trtllm_ar", "trtllm_allreduce_fusion"): self._trtllm,
            ("comm.trtllm_ar", "AllReduceFusionPattern"): SimpleNamespace(kARResidualRMSNorm=1),
            ("comm.vllm_ar", "meta_size"): lambda: 1000,
            ("comm.vllm_ar", "init_custom_ar"): self._init,
            ("comm.vllm_ar", "register_buffer"): lambda handle, addresses: self.note("register", addresses=addresses),
            ("comm.vllm_ar", "all_reduce"): self._vllm,
        }
        return found[module, name]

    def _create(self, rank: int, ranks: int, tokens: int, width: int, **more: Any) -> Any:
        self.note("create", rank=rank, ranks=ranks, tokens=tokens, width=width, **more)
        return ["handles"], torch.zeros(8, dtype=torch.int64), {"max_token_num": tokens}

    def _trtllm(self, *, allreduce_in: Tensor, residual_in: Tensor, residual_out: Tensor, norm_out: Tensor,
                rms_gamma: Tensor, rms_eps: float, **more: Any) -> None:  # fmt: skip
        self.note("trtllm", **more)
        assert allreduce_in.is_contiguous()
        residual_out.copy_(allreduce_in + residual_in)
        norm_out.copy_(rmsnorm(residual_out, rms_gamma, rms_eps))

    def _init(self, addresses: list[int], rank_data: Tensor, rank: int, full: bool) -> int:
        self.note("init", addresses=addresses, rank=rank, full=full)
        return 7

    def _vllm(self, handle: int, x: Tensor, out: Tensor, buffer: int, size: int, blocks: int) -> None:
        self.note("vllm", handle=handle, buffer=buffer, same=x is out, fits=x.numel() * x.element_size() <= size)

    def sglang(self, module: str, name: str) -> Any:
        if name == "fused_add_rmsnorm":
            return lambda x, residual, weight, eps, cast_x_before_out_mul: _in_place(
                x, residual, weight, eps, BEFORE_WEIGHT if cast_x_before_out_mul else ONCE
            )
        planes = {
            "PushPlane": lambda rank, ranks, **more: self.note("push", **more) or "push",  # type: ignore[func-returns-value]
            "PullPlane": lambda rank, ranks, **more: self.note("pull", **more) or "pull",  # type: ignore[func-returns-value]
            "Communicator": lambda **more: SimpleNamespace(**more),
            "AllReduceAlgo": {"ONE_SHOT_PUSH": "push", "TWO_SHOT_PULL": "pull"},
            "custom_all_reduce": self._custom,
        }
        return planes[name]

    def _custom(self, communicator: Any, x: Tensor, algorithm: str, *, use_multicast: bool) -> Tensor:
        self.note("custom", algorithm=algorithm, use_multicast=use_multicast, has=vars(communicator))
        return x.clone()


class Memory(PeerMemory):
    """Peer buffers of one rank that exist."""

    def view(self, rank: int, offset: int, shape: tuple[int, ...]) -> Tensor:
        """Zeros of that shape."""
        return torch.zeros(shape, dtype=torch.uint8)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = Upstream()
    monkeypatch.setattr(vllm_provider, "operator", made.operator)
    monkeypatch.setattr(sgl_kernel_provider, "operator", made.operator)
    monkeypatch.setattr(ipc_provider, "function", made.flashinfer)
    monkeypatch.setattr(sglang_provider, "function", made.sglang)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for module in (sglang, vllm_allreduce):
        monkeypatch.setattr(module, "peer_memory", lambda group, device, size: Memory((4096,), size))
    for cached in (flashinfer._workspace, sglang._communicator, vllm_allreduce._communicator):
        cached.cache_clear()
    return made


def called(one: Candidate, group: str, rounding: str, rows: int = 5) -> tuple[Any, tuple[Tensor, Tensor]]:
    """What the adapter makes, and what is right."""
    generator = torch.Generator().manual_seed(0)
    x, residual = torch.randn((2, rows, 256), generator=generator).bfloat16()
    weight = (1 + 0.2 * torch.randn(256, generator=generator)).bfloat16()
    right = native(x, weight, EPS, "", residual, rounding)
    args = {"x": x.clone(), "residual": residual.clone()}
    made = one(**args, weight=weight, eps=EPS, group=group, rounding=rounding)
    for name, before in (("x", x), ("residual", residual)):
        assert name in one.mutates or torch.equal(args[name], before), name
    return tuple(args[name] for name in one.returns) if one.returns else made, right


@pytest.mark.parametrize("name", UPSTREAM)
def test_adapters_meet_upstreams_terms(name: str, group: str, upstream: Upstream) -> None:
    one = UPSTREAM[name]
    made, right = called(one, group, ONCE)
    for got, expected in zip(made, right, strict=True):
        assert torch.equal(got, expected)
    empty, _ = called(one, group, ONCE, rows=0)
    assert [list(output.shape) for output in empty] == [[0, 256], [0, 256]]


def test_only_sglang_can_round_before_the_weight(group: str, upstream: Upstream) -> None:
    for name, one in UPSTREAM.items():
        made, right = called(one, group, BEFORE_WEIGHT)
        assert torch.equal(made[0], right[0]) == name.startswith("sglang."), name


@pytest.mark.parametrize("name", [name for name in UPSTREAM if not name.startswith("sglang.nccl")])
def test_weights_of_another_dtype_are_refused(name: str, group: str, upstream: Upstream) -> None:
    """vllm issue 48324."""
    x = torch.randn(3, 256).bfloat16()
    with pytest.raises(TypeError, match="this kernel reads both as one type"):
        UPSTREAM[name](x=x, residual=x.clone(), weight=torch.ones(256), eps=EPS, group=group)


@pytest.mark.parametrize("one_shot", [True, False])
def test_flashinfer_gets_an_ipc_workspace_of_the_group(one_shot: bool, group: str, upstream: Upstream) -> None:
    """vllm PR 45917: a workspace of the world's instead hangs; symmetric memory would bind multicast."""
    called(UPSTREAM[f"flashinfer_ipc.trtllm_{'one' if one_shot else 'two'}_shot"], group, ONCE)
    (_, created), (_, given) = upstream.calls
    assert (created["rank"], created["ranks"], created["tokens"], created["width"]) == (0, 1, 8, 256)
    assert created["group"].group_name == group
    assert created["use_symm_dev_mem"] is False
    assert given["use_oneshot"] is one_shot
    assert given["metadata"] == {"max_token_num": 8}
    assert given["pattern_code"] == 1


def test_sglang_gets_no_multicast_address(group: str, upstream: Upstream) -> None:
    for algorithm in ("one_shot_push", "two_shot_pull"):
        called(UPSTREAM[f"sglang.{algorithm}_fused_add_rmsnorm"], group, ONCE)
    by_name = dict(upstream.calls)
    assert not any("mc_" in name for given in by_name.values() for name in given)
    assert by_name["custom"]["use_multicast"] is False
    assert by_name["push"]["workspaces"][0].shape == (2, 1 << 20 << 1)
    assert by_name["push"]["counter"].shape == (132, 4)
    assert by_name["pull"]["semaphores"][0].shape == (132, 128)


def test_vllms_all_reduce_goes_through_its_buffer_in_place(group: str, upstream: Upstream) -> None:
    called(UPSTREAM["flashinfer_ipc.vllm_all_reduce_fused_add_rmsnorm"], group, ONCE)
    by_name = dict(upstream.calls)
    assert by_name["init"]["full"] is True
    assert by_name["vllm"] == {"handle": 7, "buffer": 4096, "same": True, "fits": True}


# --- guards -------------------------------------------------------------------------------------------------------

REASONS: list[tuple[Case, str, str]] = [
    (case(dtype=Dtype.FP32), "flashinfer_ipc.trtllm_one_shot", "takes bfloat16, float16 only"),
    (case(residual=False), "flashinfer_ipc.trtllm_one_shot", "its kernel adds a residual, the case has none"),
    (case(residual=False), "vllm.nccl_fused_add_rms_norm", "its kernel adds a residual, the case has none"),
    (case(layout=Layout.SLICED), "sgl_kernel.nccl_fused_add_rmsnorm", "takes contiguous tensors only"),
    (case(ranks=3), "flashinfer_ipc.trtllm_two_shot", "3 ranks: takes 2, 4, 8, 16"),
    (case(rows=2), "flashinfer_ipc.trtllm_two_shot", "2 are not more than 2 ranks"),
    (case(width=2052), "flashinfer_ipc.trtllm_one_shot", "D=2052: takes multiples of 8"),
    (case(width=16384), "flashinfer_ipc.trtllm_one_shot", "D=16384 is more than 8192"),
    (case(rows=8192, width=8192), "flashinfer_ipc.trtllm_one_shot", "128 MiB is more than 32 MiB"),
    (case(rows=8192, width=8192), "inhouse.triton_one_shot", "128 MiB is more than 32 MiB"),
    (case(rows=8192), "flashinfer_ipc.vllm_all_reduce_fused_add_rmsnorm", "vllm hands tensors above 8 MiB to NCCL"),
    (case(ranks=3), "flashinfer_ipc.vllm_all_reduce_fused_add_rmsnorm", "3 ranks: takes 2, 4, 6 or 8"),
    (case(width=2056), "sglang.nccl_jit_fused_add_rmsnorm", "D=2056: takes multiples of 16 up to 8192"),
    (case(width=16384), "inhouse.triton_two_shot", "D=16384 is more than 8192"),
    (case(layout=Layout.TRANSPOSED), "inhouse.triton_two_shot", "the last dim of a transposed tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "why"), REASONS, ids=lambda value: value if isinstance(value, str) else "")
def test_guards_say_why(given: Case, name: str, why: str) -> None:
    assert why in str((UPSTREAM | OURS)[name].declines(given, H200))


def test_guards_admit_what_the_manifest_decides_by() -> None:
    for name, one in (UPSTREAM | OURS).items():
        assert one.declines(case(), H200) is None, name
    assert not any(one.multicast for one in (UPSTREAM | OURS).values())


def test_fewer_sms_than_programs_that_wait_for_each_other() -> None:
    small = Device("cuda", "half a GPU", (9, 0), 66, 30 * 2**20, 70 * 2**30)
    assert "launches 132 programs" in str(UPSTREAM["sglang.two_shot_pull_fused_add_rmsnorm"].declines(case(), small))


# --- the second flashinfer ----------------------------------------------------------------------------------------


@pytest.fixture
def unpacked_ipc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_PROVIDERS", str(tmp_path))
    monkeypatch.setattr(unpacked, "lacks_gpu", lambda why="": None)
    monkeypatch.setattr(unpacked, "lacks_modules", lambda package, *names: None)
    monkeypatch.setattr(unpacked, "lacks_toolchain", lambda package: None)
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    folder = tmp_path / FLASHINFER_IPC.folder
    (folder / "flashinfer").mkdir(parents=True)
    (folder / STAMP).write_text('{"keep": ["*"]}')
    return folder


def test_the_older_flashinfer_lies_beside_the_newer(unpacked_ipc: Path) -> None:
    assert FLASHINFER_IPC.requirement == "flashinfer-python==0.6.8.post1"
    assert FLASHINFER_IPC.folder != FLASHINFER.folder
    assert len({package.folder for package in PACKAGES}) == len(PACKAGES)
    assert ipc_provider.PROVIDER.missing() is None
    assert ipc_provider.PROVIDER.version() == "0.6.8.post1"
    (unpacked_ipc / STAMP).unlink()
    assert "run `make providers`" in str(ipc_provider.PROVIDER.missing())


def test_one_process_imports_one_flashinfer(unpacked_ipc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("flashinfer")
    other.__file__, other.__version__ = "/elsewhere/flashinfer/__init__.py", "0.6.13"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", other)
    said = "flashinfer 0.6.13 is imported in this process, and only one can be: this needs 0.6.8.post1"
    assert ipc_provider.PROVIDER.missing() == said
    ipc_provider.function.cache_clear()
    with pytest.raises(RuntimeError, match="only one can be"):
        ipc_provider.function("norm", "rmsnorm")
    other.__file__ = str(unpacked_ipc / "flashinfer/__init__.py")
    assert ipc_provider.PROVIDER.missing() is None
