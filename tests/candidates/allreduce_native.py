"""One rank of test_allreduce_rmsnorm.py over gloo: the authority, eager and compiled, against the fp64 sum."""

import json
import os
from typing import Any

import torch
import torch.distributed as dist

from candidates.allreduce_rmsnorm.op import OP, native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.measure.inputs import SeededDraw
from harness.measure.ranks import Seat
from harness.schema.case import Case, Confidence, Dtype, Layout
from tests.candidates.allreduce_rehearsal import drawn, parts_of
from tests.candidates.ranked import join


def case(rows: int, layout: Layout = Layout.CONTIGUOUS, residual: bool = True) -> Case:
    dims = {"T": rows, "D": 96}
    return Case(
        id="case",
        model="made-up",
        dims=dims,
        params={"eps": 1e-6, "rounding": ONCE, "residual": residual},
        dtype=Dtype.FP32,
        layout=layout,
        calls=1,
        step="one call",
        ranks=2,
        source="made up for a test",
        confidence=Confidence.DERIVED,
        rehearsal=dims,
    )


def against_fp64(rank: int, ranks: int, group: str) -> dict[str, float]:
    seen = {}
    for rows in (1, 5, 0):
        for rounding in (ONCE, BEFORE_WEIGHT):
            for with_residual in (True, False):
                parts = parts_of(ranks, (rows, 96), rows)
                residual = drawn((rows, 96), 50).double() if with_residual else None
                weight = 1 + 0.2 * drawn((96,), 60)
                total = torch.stack([part.double() for part in parts]).sum(0)
                right = native(total, weight.double(), 1e-6, "", residual, rounding)
                given = None if residual is None else residual.float()
                got = native(parts[rank], weight, 1e-6, group, given, rounding)
                label = f"{rows} {rounding} {with_residual}"
                seen[label] = max(
                    torch.cat([(a - b).abs().flatten() for a, b in zip(got, right, strict=True)]).tolist() or [0]
                )
                upcast = native(parts[rank].double(), weight.double(), 1e-6, group, residual, rounding)
                assert all(torch.allclose(a, b, rtol=0, atol=1e-13) for a, b in zip(upcast, right, strict=True)), label
    return seen


def compiled(rank: int, ranks: int, group: str) -> dict[str, Any]:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(os.environ.get("COMPILE_BACKEND", "aot_eager"))
    run = torch.compile(native, fullgraph=True, dynamic=False, backend=counter)
    part, residual = parts_of(ranks, (5, 96), 9)[rank], drawn((5, 96), 10)
    weight, before = 1 + 0.2 * drawn((96,), 11), part.clone()
    got = run(part, weight, 1e-6, group, residual)
    right = native(part, weight, 1e-6, group, residual)
    return {
        "graphs": counter.frame_count,
        "error": max((a - b).abs().max().item() for a, b in zip(got, right, strict=True)),
        "input_kept": torch.equal(part, before),
    }


def inputs(rank: int, ranks: int, group: str) -> dict[str, Any]:
    """What the op draws, and what native makes of it in every layout."""
    draw = SeededDraw(0, torch.float32, torch.device("cpu"), seat=Seat(rank, ranks, group))
    seen: dict[str, Any] = {"group": OP.inputs(case(3), draw)["group"] == group}
    for layout in (Layout.CONTIGUOUS, Layout.SLICED, Layout.TRANSPOSED, Layout.ODD_STRIDE):
        args = OP.inputs(case(3, layout), draw)
        gathered: dict[str, list[torch.Tensor]] = {}
        for name in ("x", "residual", "weight"):
            everyones: list[Any] = [None] * ranks
            dist.all_gather_object(everyones, args[name].contiguous())
            gathered[name] = everyones
        outputs = native(**args)
        total = torch.stack(gathered["x"]).double().sum(0)
        right = native(total, args["weight"].double(), 1e-6, "", args["residual"].double())
        seen[layout] = {
            "x differs": not torch.equal(gathered["x"][0], gathered["x"][1]),
            "residual is one": torch.equal(gathered["residual"][0], gathered["residual"][1]),
            "weight is one": torch.equal(gathered["weight"][0], gathered["weight"][1]),
            "contiguous": all(output.is_contiguous() for output in outputs),
            "error": max((a - b).abs().max().item() for a, b in zip(outputs, right, strict=True)),
        }
    return seen


if __name__ == "__main__":
    place = join()
    print(json.dumps({"fp64": against_fp64(*place), "compiled": compiled(*place), "inputs": inputs(*place)}))
    dist.destroy_process_group()
