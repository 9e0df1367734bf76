"""One rank of test_allreduce_gpu.py, with a GPU of its own over NCCL: every candidate there is, eager and replayed."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from candidates.allreduce_rmsnorm import flashinfer, inhouse, sgl_kernel, sglang, vllm, vllm_allreduce
from candidates.allreduce_rmsnorm.op import native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT
from harness.measure import environment
from harness.measure.gate import same_strided_copy
from harness.op import Candidate, Device
from harness.schema.case import Case, Confidence, Dtype
from tests.candidates.ranked import join

EPS = 1e-6
SHAPES = [(1, 2048), (3, 1024), (64, 2048), (257, 4096), (1023, 2048), (8192, 2048), (700, 8192)]
MODULES = (flashinfer, inhouse, sgl_kernel, sglang, vllm, vllm_allreduce)
OURS = (inhouse.triton_one_shot, inhouse.triton_two_shot)


def candidates() -> list[Candidate]:
    return [value for module in MODULES for value in vars(module).values() if isinstance(value, Candidate)]


def case(rows: int, width: int, ranks: int) -> Case:
    dims = {"T": rows, "D": width}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": EPS, "rounding": BEFORE_WEIGHT, "residual": True},
        dtype=Dtype.BF16,
        calls=1,
        step="one call",
        ranks=ranks,
        source="made up for a test",
        confidence=Confidence.DERIVED,
        rehearsal=dims,
    )


class Drawn:
    """Everybody's parts, so that every rank knows the sum without communication."""

    def __init__(self, rows: int, width: int, rank: int, ranks: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).bfloat16().cuda()

        parts = [normal(rows, width) for _ in range(ranks)]
        self.x, self.residual = parts[rank], normal(rows, width)
        self.weight = (1 + 0.2 * normal(width)).bfloat16()
        self.h = torch.stack([part.double() for part in parts]).sum(0) + self.residual.double()
        self.y = native(self.h, self.weight.double(), EPS, "")[0]

    def error(self, outputs: tuple[Tensor, ...]) -> float:
        """Largest distance from the fp64 result in bf16 ULPs of the larger of the element and the RMS."""
        worst = 0.0
        for got, right in zip(outputs, (self.y, self.h), strict=True):
            scale = torch.maximum(right.abs(), right.square().mean().sqrt())
            worst = max(worst, ((got.double() - right).abs() / scale).max().item() * 2**8)
        return worst


def call(candidate: Candidate, drawn: Drawn, group: str) -> tuple[Tensor, ...]:
    args = {"x": drawn.x, "residual": drawn.residual}
    args = {name: same_strided_copy(value) if name in candidate.mutates else value for name, value in args.items()}
    made = candidate(**args, weight=drawn.weight, eps=EPS, group=group, rounding=BEFORE_WEIGHT)
    return tuple(args[name] for name in candidate.returns) if candidate.returns else made


def equal_on_all(outputs: tuple[Tensor, ...]) -> bool:
    """Whether rank 0 has the same bits."""
    same = True
    for output in outputs:
        first = output.clone()
        dist.broadcast(first, 0)
        same = same and torch.equal(first, output)
    return same


def agree(one: Candidate, device: Device, rank: int, ranks: int, group: str) -> dict[str, Any]:
    """Every shape the guard admits, three times over on other values."""
    seen: dict[str, Any] = {"worst": 0.0, "shapes": 0, "equal": True, "repeats": True}
    for turn, (rows, width) in enumerate(SHAPES * 3):
        if one.declines(case(rows, width, ranks), device):
            continue
        drawn = Drawn(rows, width, rank, ranks, turn)
        outputs, again = call(one, drawn, group), call(one, drawn, group)
        seen["worst"] = max(seen["worst"], drawn.error(outputs))
        seen["shapes"] += 1
        seen["equal"] = seen["equal"] and equal_on_all(outputs)
        seen["repeats"] = seen["repeats"] and all(torch.equal(a, b) for a, b in zip(outputs, again, strict=True))
    return seen


def replayed(one: Candidate, rank: int, ranks: int, group: str) -> dict[str, Any]:
    """Twenty launches in a CUDA graph, replayed on new values, one rank late in turn, with eager calls in between."""
    rows, width = 37, 2048
    drawn = Drawn(rows, width, rank, ranks, 0)
    call(one, drawn, group)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            outputs = call(one, drawn, group)
    worst = 0.0
    for turn in range(10):
        fresh = Drawn(rows, width, rank, ranks, turn)
        for name in ("x", "residual", "weight", "y", "h"):
            getattr(drawn, name).copy_(getattr(fresh, name))
        if turn % ranks == rank:
            torch.cuda._sleep(2_000_000)
        graph.replay()
        worst = max(worst, drawn.error(outputs))
        other = Drawn(5 + turn, width, rank, ranks, 100 + turn)
        worst = max(worst, other.error(call(one, other, group)))
    return {"worst": worst}


def ours(rank: int, ranks: int, group: str) -> dict[str, Any]:
    """What our two kernels promise: the same bits as each other, and the sum that NCCL hands on between two ranks."""
    same = as_nccl = True
    for turn, (rows, width) in enumerate(SHAPES):
        drawn = Drawn(rows, width, rank, ranks, turn)
        one, two = (call(each, drawn, group) for each in OURS)
        same = same and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        by_nccl = native(drawn.x, drawn.weight, EPS, group, drawn.residual, BEFORE_WEIGHT)[1]
        as_nccl = as_nccl and torch.equal(by_nccl, two[1])
    return {"same": same, "as_nccl": as_nccl}


if __name__ == "__main__":
    with torch.no_grad():
        rank, ranks, group = join("nccl")
        device = environment.device("cuda")
        seen: dict[str, Any] = {"missing": {}, "agree": {}, "replayed": {}}
        for one in candidates():
            if why := one.provider.missing():
                seen["missing"][one.id] = why
                continue
            seen["agree"][one.id] = agree(one, device, rank, ranks, group)
            seen["replayed"][one.id] = replayed(one, rank, ranks, group)
        seen["ours"] = ours(rank, ranks, group)
        empty = torch.empty((0, 2048), dtype=torch.bfloat16, device="cuda")
        outputs = OURS[1](x=empty, weight=torch.ones_like(empty[0:1].sum(0)), eps=EPS, group=group)
        seen["empty"] = [list(output.shape) for output in outputs]
    print(json.dumps(seen))
    dist.destroy_process_group()
