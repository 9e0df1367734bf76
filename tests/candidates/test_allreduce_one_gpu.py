"""Our all-reduce + RMSNorm kernels on one GPU whose halves are two ranks: a stream, a buffer, half the programs each.

What peers' memory costs is not seen here; that the flags, the two halves of a buffer and the sums are right on hardware
is. The kernels wait for each other, so a fault may hang: the time limit ends the process and says where it stood.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from candidates.allreduce_rmsnorm import launch
from candidates.allreduce_rmsnorm.workspace import PeerMemory, Workspace
from candidates.rmsnorm import op as rmsnorm
from candidates.rmsnorm.rounding import BEFORE_WEIGHT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120, method="thread")]
RANKS = 2
EPS = 1e-6
ULP = 2**-7
"""Of bf16, at most, against a value."""
LARGEST = (1023, 2048)
SHAPES = [(1, 2048), (3, 1024), (64, 2048), (257, 4096), LARGEST]
FAR_AHEAD = 1 << 30
"""An epoch that nobody waits for."""


class TwoRanks:
    """Two workspaces of one process."""

    def __init__(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device())
        programs = launch.most_programs(device) // RANKS
        half = max(launch.half_bytes(*LARGEST, 2, RANKS, two_shot=two_shot) for two_shot in (False, True))
        self.flag_bytes = -(-2 * programs * RANKS * 4 // 128) * 128
        self.buffers = [torch.zeros(self.flag_bytes + 2 * half, dtype=torch.uint8, device=device) for _ in range(RANKS)]
        addresses = tuple(buffer.data_ptr() for buffer in self.buffers)
        self.streams = [torch.cuda.Stream() for _ in range(RANKS)]
        self.spaces = {
            str(rank): Workspace(
                rank=rank,
                ranks=RANKS,
                programs=programs,
                flag_bytes=self.flag_bytes,
                half_bytes=half,
                bases=torch.tensor(addresses, dtype=torch.int64, device=device),
                state=torch.zeros(2, dtype=torch.int32, device=device),
                memory=PeerMemory(addresses, self.buffers),
            )
            for rank in range(RANKS)
        }

    def set_flags(self, epoch: int) -> None:
        """All flags, and the launches counted from 0 again."""
        torch.cuda.synchronize()
        for buffer in self.buffers:
            buffer[: self.flag_bytes].view(torch.int32).fill_(epoch)
        for space in self.spaces.values():
            space.state.zero_()
        torch.cuda.synchronize()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoRanks]:
    made = TwoRanks()
    monkeypatch.setattr(launch, "_space", lambda x, group, two_shot: made.spaces[group])
    yield made
    torch.cuda.synchronize()


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def launched(
    two: TwoRanks, xs: list[Tensor], residual: Tensor, weight: Tensor, *, two_shot: bool, late: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """One launch of each rank on a stream of its own; rank `late` begins some 2 ms after the other."""
    torch.cuda.synchronize()
    outputs = []
    for rank, x in enumerate(xs):
        with torch.cuda.stream(two.streams[rank]):
            if rank == late:
                torch.cuda._sleep(4_000_000)
            outputs.append(launch.fused(x, weight, EPS, str(rank), residual, BEFORE_WEIGHT, two_shot=two_shot))
    torch.cuda.synchronize()
    return outputs


def prepare(two: TwoRanks, rows: int, width: int, *, two_shot: bool) -> None:
    """Compiled, loaded and with memory for the outputs of two launches, where nobody waits: loading a kernel and
    getting memory from the driver may wait for the kernel that spins."""
    two.set_flags(FAR_AHEAD)
    xs, weight = [normal(rows, width) for _ in range(RANKS)], normal(width)
    held = [launched(two, xs, normal(rows, width), weight, two_shot=two_shot) for _ in range(2)]
    del held
    two.set_flags(0)


@pytest.mark.parametrize("two_shot", [False, True], ids=["one_shot", "two_shot"])
def test_two_halves_of_a_gpu_agree_with_the_formula(two: TwoRanks, two_shot: bool) -> None:
    """h has the formula's bits; the norm's inverse may differ in its last bit and so turn two roundings, an ULP each.
    The same bits on both ranks, launch after launch."""
    torch.manual_seed(1)
    for rows, width in SHAPES:
        prepare(two, rows, width, two_shot=two_shot)
        weight = (1 + 0.2 * normal(width)).bfloat16()
        for turn in range(6):
            xs, residual = [normal(rows, width) for _ in range(RANKS)], normal(rows, width)
            late = turn % 3 if turn % 3 < RANKS else None
            made = launched(two, xs, residual, weight, two_shot=two_shot, late=late)
            h = (xs[0].float() + xs[1].float()).bfloat16() + residual
            y = rmsnorm.native(h, weight, EPS, BEFORE_WEIGHT).double()
            assert torch.equal(made[0][1], h), (rows, width, turn)
            off = (made[0][0].double() - y).abs() - 2 * ULP * y.abs()
            assert off.max().item() <= 0, (rows, width, turn)
            assert all(torch.equal(a, b) for a, b in zip(*made, strict=True)), (rows, width, turn)


def test_both_kernels_give_the_same_bits(two: TwoRanks) -> None:
    torch.manual_seed(2)
    rows, width = 257, 2048
    weight = (1 + 0.2 * normal(width)).bfloat16()
    xs, residual = [normal(rows, width) for _ in range(RANKS)], normal(rows, width)
    results = []
    for two_shot in (False, True):
        prepare(two, rows, width, two_shot=two_shot)
        results.append(launched(two, xs, residual, weight, two_shot=two_shot)[0])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
