"""All-reduce + RMSNorm: the declaration, native over gloo, and our kernels between processes in the interpreter."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from candidates.allreduce_rmsnorm import workspace
from candidates.allreduce_rmsnorm.launch import fused, grid, half_bytes, tile
from candidates.allreduce_rmsnorm.op import OP, link_bytes, native
from candidates.allreduce_rmsnorm.workspace import PeerMemory, Workspace
from candidates.rmsnorm.op import native as rmsnorm
from candidates.rmsnorm.rounding import BEFORE_WEIGHT
from harness.schema.manifest import load_manifest
from tests.candidates import interpreted, ranked
from tests.candidates.allreduce_native import case

MANIFEST = Path(__file__).parents[2] / "shapes/allreduce_rmsnorm.yaml"


@pytest.fixture(scope="module")
def gloo() -> list[dict[str, Any]]:
    return ranked.run("tests.candidates.allreduce_native", 2)


@pytest.fixture(scope="module")
def rehearsal() -> list[dict[str, Any]]:
    return ranked.run("tests.candidates.allreduce_rehearsal", 2, interpret=True)


def test_native_is_the_norm_of_the_fp64_sum(gloo: list[dict[str, Any]]) -> None:
    for seen in gloo:
        assert len(seen["fp64"]) == 12
        assert max(seen["fp64"].values()) < 2e-6


def test_native_compiles_into_one_graph_and_leaves_its_input(gloo: list[dict[str, Any]]) -> None:
    for seen in gloo:
        assert seen["compiled"]["graphs"] == 1
        assert seen["compiled"]["error"] < 1e-6
        assert seen["compiled"]["input_kept"]


@pytest.mark.slow
def test_inductor_compiles_native_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_BACKEND", "inductor")
    for seen in ranked.run("tests.candidates.allreduce_native", 2):
        assert seen["compiled"]["graphs"] == 1
        assert seen["compiled"]["error"] < 1e-6
        assert seen["compiled"]["input_kept"]


def test_ranks_differ_in_x_alone(gloo: list[dict[str, Any]]) -> None:
    for seen in gloo:
        assert seen["inputs"].pop("group")
        assert len(seen["inputs"]) == 4
        for layout, made in seen["inputs"].items():
            assert made.pop("error") < 2e-6, layout
            assert set(made.values()) == {True}, (layout, made)


def test_one_rank_is_residual_add_and_norm() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, h = native(x, weight, 1e-6, "", residual)
    assert torch.equal(h, x + residual)
    assert torch.equal(normed, rmsnorm(h, weight, 1e-6))


def test_cases_that_there_is_nothing_to_reduce_in_are_refused() -> None:
    assert OP.check(case(3)) is None
    assert "there is nothing to reduce" in str(OP.check(case(3).model_copy(update={"ranks": 1})))
    twice = {"eps": 1e-6, "rounding": "twice", "residual": True}
    assert "neither once nor before_weight" in str(OP.check(case(3).model_copy(update={"params": twice})))


def test_bytes_of_the_memory_and_of_the_link() -> None:
    """A row of 96 fp32 is 384 bytes: x, residual, y and h; over the link one tensor between two ranks, either way."""
    assert OP.bytes_moved(case(5)) == 4 * 5 * 384 + 384
    assert OP.bytes_moved(case(5, residual=False)) == 3 * 5 * 384 + 384
    assert link_bytes(case(5), one_shot=True) == link_bytes(case(5), one_shot=False) == 5 * 384
    eight = case(8).model_copy(update={"ranks": 8})
    assert link_bytes(eight, one_shot=True) == 7 * 8 * 384
    assert link_bytes(eight, one_shot=False) == 14 * 384


def test_what_decides_is_the_thinker_on_two_gpus() -> None:
    manifest = load_manifest(MANIFEST)
    assert manifest.deciding_models == ("qwen3-omni-thinker-tp2",)
    assert {one.ranks for one in manifest.cases if one.model == "qwen3-omni-thinker-tp2"} == {2}
    assert {one.ranks for one in manifest.cases} == {2, 4, 8}
    assert {one.rehearsal["T"] for one in manifest.cases} == {1, 5}


# Our kernels, between two processes


def test_kernels_agree_with_the_fp64_sum_launch_after_launch(rehearsal: list[dict[str, Any]]) -> None:
    for seen in rehearsal:
        assert len(seen["errors"]) == 12
        assert max(seen["errors"].values()) < 2e-6, seen["errors"]
        assert seen["sliced"] < 2e-6
        assert seen["empty"] == [[0, 64], [0, 64]]


def test_nobody_reads_too_early_or_too_late(rehearsal: list[dict[str, Any]]) -> None:
    for seen in rehearsal:
        assert seen["lateness"] < 2e-6


def test_both_kernels_give_the_bits_of_the_rounded_sum(rehearsal: list[dict[str, Any]]) -> None:
    """The last rounding alone is the interpreter's, which truncates."""
    for seen in rehearsal:
        assert seen["bf16"] == {"same": True, "sum_exact": True, "steps": 1}


@pytest.mark.slow
def test_three_ranks_that_do_not_divide_the_tokens() -> None:
    for seen in ranked.run("tests.candidates.allreduce_rehearsal", 3, interpret=True):
        assert max(seen["errors"].values()) < 2e-6, seen["errors"]
        assert seen["lateness"] < 2e-6


def test_kernels_compile_for_hopper_without_spills() -> None:
    """At the manifest's shapes: 128-bit global loads, no local memory. Needs ptxas (it comes with Triton), no GPU."""
    facts = interpreted.run("tests.candidates.hopper_allreduce_rmsnorm", interpret=False)
    assert len(facts) == 6
    for name, kernel in facts.items():
        assert kernel["local_bytes"] == 0, name
        assert kernel["load_bits"] == 128, name
        assert kernel["registers"] <= 64, name
        # each meeting: a release by one exchange for every peer, then an acquire
        meetings = 2 if "two_shot" in name else 1
        assert kernel["releases"] >= meetings, name
        assert kernel["acquires"] >= meetings, name


def test_all_programs_of_a_launch_fit_on_the_gpu_at_once() -> None:
    space = Workspace(0, 2, 132 * 8, 1 << 14, 1 << 21, torch.empty(2), torch.empty(2), PeerMemory((), None))
    for width in (96, 1024, 2048, 4096, 8192):
        block, warps = tile(width)
        assert block >= width
        assert grid(10**6, warps, space) * warps <= 132 * 32
        assert grid(3, warps, space) == 3


@pytest.mark.parametrize("two_shot", [False, True])
def test_a_half_holds_a_launch(two_shot: bool) -> None:
    rows, width, ranks = 5, 96, 2
    parts = (-(-rows // ranks) if two_shot else rows) * ranks
    assert half_bytes(rows, width, 4, ranks, two_shot=two_shot) == (parts + (rows if two_shot else 0)) * width * 4


def test_rows_that_are_not_dense_or_too_long_are_an_error() -> None:
    with pytest.raises(ValueError, match="takes adjacent elements, 8192 at most"):
        fused(torch.randn(4, 8).T, torch.ones(4), 1e-6, "", None, two_shot=True)
    with pytest.raises(ValueError, match="takes adjacent elements, 8192 at most"):
        fused(torch.randn(1, 8193), torch.ones(8193), 1e-6, "", None, two_shot=True)


def test_rounding_before_a_weight_of_another_dtype_is_an_error() -> None:
    """vllm issue 48324: a kernel that read fp32 weights as bf16 returned nonsense."""
    x = torch.randn(3, 8).bfloat16()
    with pytest.raises(ValueError, match="takes a weight of x's dtype"):
        fused(x, torch.randn(8), 1e-6, "", None, BEFORE_WEIGHT, two_shot=False)


# Multicast


class _Handle:
    """Its buffers begin 64 bytes into what is mapped."""

    rank = 0

    def __init__(self, multicast_ptr: int, buffer: torch.Tensor) -> None:
        self.multicast_ptr = multicast_ptr
        self.buffer_ptrs = (buffer.data_ptr() - 64, 8192)

    def barrier(self) -> None: ...


@pytest.mark.parametrize(
    ("setting", "address", "said"),
    [
        (None, 0, "set TORCH_SYMM_MEM_DISABLE_MULTICAST=1 before the process starts"),
        ("0", 0, "set TORCH_SYMM_MEM_DISABLE_MULTICAST=1 before the process starts"),
        ("1", 4096, "torch mapped a multicast address although TORCH_SYMM_MEM_DISABLE_MULTICAST=1"),
        ("1", 0, None),
    ],
)
def test_peer_memory_is_refused_where_multicast_is_not_off(
    setting: str | None, address: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed._symmetric_memory as symmetric

    monkeypatch.setattr(symmetric, "empty", lambda size, dtype, device: torch.ones(size, dtype=dtype))
    monkeypatch.setattr(symmetric, "rendezvous", lambda buffer, group: _Handle(address, buffer))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(workspace, "process_group", lambda group: group)
    monkeypatch.delenv(workspace.MULTICAST_OFF, raising=False)
    if setting is not None:
        monkeypatch.setenv(workspace.MULTICAST_OFF, setting)
    if said is None:
        memory = workspace.peer_memory("group", torch.device("cuda"), 64)
        assert memory.addresses == (memory.kept[0].data_ptr(), 8192 + 64)
        assert memory.offset == 64
        assert not memory.kept[0].any()
        return
    with pytest.raises(RuntimeError, match=re.escape(said)):
        workspace.peer_memory("group", torch.device("cuda"), 64)


def test_peer_memory_is_not_made_inside_a_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call the kernel once before"):
        workspace.peer_memory("group", torch.device("cuda"), 64)
