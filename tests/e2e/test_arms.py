"""What is counted in an arm's graphs."""

import pytest
import torch
from torch import Tensor

from harness.e2e.arms import GraphLog
from harness.e2e.engaged import counted
from harness.measure.arms import GraphCounter


@torch.library.custom_op("dit_harness::named_group_norm", mutates_args=())
def named_group_norm(x: Tensor) -> Tensor:
    """A candidate called after what it replaces."""
    return x.clone()


@named_group_norm.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_candidate_called_after_the_op_it_replaces_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphCounter, "__call__", lambda self, graph, inputs: graph.forward)
    log = GraphLog()

    def both(x: Tensor) -> Tensor:
        return torch.nn.functional.group_norm(named_group_norm(x), 2)

    torch.compile(both, fullgraph=True, backend=log)(torch.randn(2, 4, 3))
    assert counted(["group_norm"], log.nodes) == {"group_norm": 1}
