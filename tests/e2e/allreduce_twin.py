"""One rank of test_allreduce_wiring.py: the thinker's twin, whole, split over the ranks, and wired."""

import copy
import json
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from candidates.allreduce_rmsnorm import op
from candidates.allreduce_rmsnorm.wiring import WIRINGS
from candidates.allreduce_rmsnorm.wiring_shards import shard
from harness.e2e.models import Family
from harness.e2e.quality import reference_output
from tests.candidates.ranked import join
from tests.e2e.twins import twin

(WIRING,) = WIRINGS


def in_place(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str) -> Any:
    """As a kernel that writes the norm into x and the sum into the residual."""
    y, h = op.native(x, weight, eps, group, residual, rounding)
    x.copy_(y)
    residual.copy_(h)
    return x, residual


def graph_of(run: Any, *args: Any) -> tuple[list[str], Tensor]:
    """Nodes of the one graph that a fullgraph compile makes, and its output."""
    nodes: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nodes.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    return nodes, torch.compile(run, backend=backend, fullgraph=True, dynamic=False)(*args)


def quality(of: Family, whole: nn.Module, inputs: dict[str, Any], group: str) -> float:
    """The end-to-end stage's rule: distance to an fp32 copy of the same weights, in units of the whole model's own.

    Every token goes to all experts: a rounded sum may send it to another one, and one of 16 tokens is much of them.
    """
    whole = copy.deepcopy(whole)
    for router in whole.modules():
        if hasattr(router, "top_k"):
            router.top_k = router.num_experts
    split = copy.deepcopy(whole)
    shard(split, group)
    exact = reference_output(of, whole, inputs).double()
    distances = [(of.run(model, inputs).double() - exact).norm().item() for model in (split, whole)]
    return distances[0] / distances[1]


@torch.no_grad()
def seen(dtype: torch.dtype, rank: int, ranks: int, group: str) -> dict[str, Any]:
    of, whole, inputs = twin("qwen3-omni-thinker", dtype)
    model: nn.Module = copy.deepcopy(whole)
    expected, keys = of.run(whole, inputs), list(whole.state_dict())
    shard(model, group)
    split = of.run(model, inputs)
    calls: Counter[str] = Counter()
    described: list[Any] = []

    def counted(**args: Any) -> Any:
        calls["op"] += 1
        described.append(WIRING.described(**args))
        return WIRING.native(**args)

    with WIRING.apply(model, counted):
        wired, wired_keys = of.run(model, inputs), list(model.state_dict())
    with WIRING.apply(model, in_place):
        twice = [of.run(model, inputs) for _ in range(2)]
    with WIRING.apply(model, WIRING.nothing):
        nothing = of.run(model, inputs)
    answer = {
        "quality": quality(of, whole, inputs, group) if dtype is torch.bfloat16 else None,
        "keys": keys == list(model.state_dict()) == wired_keys,
        "sharded_elements": sum(p.numel() for p in model.parameters()) / sum(p.numel() for p in whole.parameters()),
        "split_error": ((split - expected).double().norm() / expected.double().norm()).item(),
        "wired_equal": torch.equal(wired, split),
        "in_place_equal": all(torch.equal(one, split) for one in twice),
        "restored": torch.equal(of.run(model, inputs), split),
        "nothing_differs": not torch.equal(nothing, split),
        "calls": calls["op"],
        "sites": sum(site.calls for site in WIRING.sites(model)),
        "described": described[0],
    }
    if dtype is torch.float32:
        nodes, output = graph_of(lambda: of.run(model, inputs))
        with WIRING.apply(model, WIRING.native):
            wired_nodes, wired_output = graph_of(lambda: of.run(model, inputs))
        answer["compiled_equal"] = torch.equal(output, split) and torch.equal(wired_output, split)
        answer["all_reduces"] = [sum("all_reduce" in node for node in each) for each in (nodes, wired_nodes)]
    return answer


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = join()
    print(json.dumps({str(dtype): seen(dtype, *place) for dtype in (torch.float32, torch.bfloat16)}))
    dist.destroy_process_group()
