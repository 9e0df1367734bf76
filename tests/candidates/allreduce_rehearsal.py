"""One rank of test_allreduce_rmsnorm.py's rehearsal, with TRITON_INTERPRET=1: our kernels over a file in shared memory.

The interpreter's atomics are the processor's, so flags, epochs and waiting are those of the kernels, between processes.
"""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from candidates.allreduce_rmsnorm import launch
from candidates.allreduce_rmsnorm.op import native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from tests.candidates.ranked import join


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parts_of(ranks: int, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank contributes: every rank draws them all, so that the sum is known without communication."""
    return [drawn(shape, 1000 * seed + rank).to(dtype) for rank in range(ranks)]


def oracle(parts: list[Tensor], residual: Tensor | None, weight: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    total = torch.stack([part.double() for part in parts]).sum(0)
    return native(total, weight.double(), 1e-6, "", None if residual is None else residual.double(), rounding)


def errors(rank: int, ranks: int, group: str) -> dict[str, float]:
    """Largest distance from the fp64 sum, launch after launch on one workspace, grids and kernels mixed."""
    seen: dict[str, float] = {}
    shapes = [(7, 96), (1, 96), (40, 16)]
    for turn, (rows, width) in enumerate(shapes):
        for two_shot in (False, True):
            for with_residual in (True, False):
                seed = 4 * turn + 2 * two_shot + with_residual
                parts = parts_of(ranks, (rows, width), seed)
                residual = drawn((rows, width), seed + 500) if with_residual else None
                weight = 1 + 0.2 * drawn((width,), seed + 900)
                got = launch.fused(parts[rank], weight, 1e-6, group, residual, ONCE, two_shot=two_shot)
                right = oracle(parts, residual, weight, ONCE)
                label = f"{seed}: {rows}x{width}{' two' if two_shot else ' one'} shot"
                seen[label] = max((a - b).abs().max().item() for a, b in zip(got, right, strict=True))
    return seen


def bf16(rank: int, ranks: int, group: str) -> dict[str, Any]:
    """The two kernels against each other and against native, rounding before the weight."""
    parts = parts_of(ranks, (5, 96), 77, torch.bfloat16)
    residual, weight = drawn((5, 96), 78).bfloat16(), (1 + 0.2 * drawn((96,), 79)).bfloat16()
    one, two = (
        launch.fused(parts[rank], weight, 1e-6, group, residual, BEFORE_WEIGHT, two_shot=two_shot)
        for two_shot in (False, True)
    )
    exact = torch.stack([part.double() for part in parts]).sum(0).bfloat16() + residual
    right = native(exact, weight, 1e-6, "", None, BEFORE_WEIGHT)[0]
    steps = (one[0].view(torch.int16).int() - right.view(torch.int16).int()).abs().max().item()
    return {
        "same": all(torch.equal(a, b) for a, b in zip(one, two, strict=True)),
        "sum_exact": torch.equal(one[1], exact),
        "steps": steps,
    }


def sliced(rank: int, ranks: int, group: str) -> float:
    """Rows of x further apart than they are long."""
    parts = parts_of(ranks, (3, 288), 5)
    weight, residual = 1 + 0.2 * drawn((96,), 6), drawn((3, 96), 7)
    got = launch.fused(parts[rank][:, 96:192], weight, 1e-6, group, residual, two_shot=True)
    right = oracle([part[:, 96:192] for part in parts], residual, weight, ONCE)
    return max((a - b).abs().max().item() for a, b in zip(got, right, strict=True))


def lateness(rank: int, ranks: int, group: str) -> float:
    """Every rank late in turn, by more than a launch takes: nobody reads what is not there yet, or gone again."""
    import time

    worst = 0.0
    for turn in range(2 * ranks):
        parts = parts_of(ranks, (4, 32), 300 + turn)
        weight = torch.ones(32)
        if turn % ranks == rank:
            time.sleep(0.2)
        got = launch.fused(parts[rank], weight, 1e-6, group, None, two_shot=bool(turn % 2))
        right = oracle(parts, None, weight, ONCE)
        worst = max(worst, *((a - b).abs().max().item() for a, b in zip(got, right, strict=True)))
    return worst


if __name__ == "__main__":
    rank, ranks, group = join()
    # GPUs of different size: launches must have as many programs on all (vllm PR 43616, flashinfer issue 3408)
    launch._sm_count = lambda device: 2 + rank
    empty = launch.fused(torch.empty(0, 64), torch.ones(64), 1e-6, group, None, two_shot=True)
    seen = {
        "errors": errors(rank, ranks, group),
        "bf16": bf16(rank, ranks, group),
        "sliced": sliced(rank, ranks, group),
        "lateness": lateness(rank, ranks, group),
        "empty": [list(one.shape) for one in empty],
    }
    print(json.dumps(seen))
    dist.destroy_process_group()
