"""Tensor parallelism of Qwen3-Omni's text models: each rank keeps its share of heads and of every expert's width.

q, k, v and the experts' gate and up are split by output (column-parallel), o and down by input (row-parallel): the
outputs of attention and experts are then partial sums, and each is reduced where it leaves. Norms, router and
embedding stay whole on every rank.
"""

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from candidates.allreduce_rmsnorm.collective import all_reduced, process_group

_GROUP = "tensor_parallel_group"


def group_of(model: nn.Module) -> str | None:
    """Name of the group that `shard` gave the model; None for a model that is whole."""
    return getattr(model, _GROUP, None)


def row_parallel(model: nn.Module) -> Iterator[nn.Module]:
    """The modules whose outputs are partial sums, in the order of the forward."""
    for layer in model.get_submodule("layers").children():
        yield layer.get_submodule("self_attn.o_proj")
        yield layer.get_submodule("mlp")


def _share(weight: Tensor, dim: int, rank: int, ranks: int) -> nn.Parameter:
    if weight.shape[dim] % ranks:
        raise ValueError(f"a weight of {tuple(weight.shape)} cannot be shared out over {ranks} ranks in dim {dim}")
    return nn.Parameter(weight.chunk(ranks, dim)[rank].clone(), requires_grad=weight.requires_grad)


def _reduced(self: Any, *args: Any, **more: Any) -> Tensor:
    return all_reduced(type(self).forward(self, *args, **more), self.tensor_parallel_group)


def shard(model: nn.Module, group: str) -> None:
    """Cut a text model to this rank's share, in place, and reduce its partial sums over `group`; same state dict keys.

    Raises ValueError for widths that the ranks do not divide.
    """
    ranks = process_group(group)
    mine = (ranks.rank(), ranks.size())
    setattr(model, _GROUP, group)
    for layer in model.get_submodule("layers").children():
        attention: Any = layer.get_submodule("self_attn")
        for name in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(attention, name)
            linear.weight = _share(linear.weight, 0, *mine)
        attention.o_proj.weight = _share(attention.o_proj.weight, 1, *mine)
        experts: Any = layer.get_submodule("mlp.experts")
        halves: list[Tensor] = [_share(half, 1, *mine) for half in experts.gate_up_proj.chunk(2, 1)]
        experts.gate_up_proj = nn.Parameter(torch.cat(halves, 1), requires_grad=experts.gate_up_proj.requires_grad)
        experts.down_proj = _share(experts.down_proj, 2, *mine)
        experts.intermediate_dim //= ranks.size()
    for module in row_parallel(model):
        setattr(module, _GROUP, group)
        object.__setattr__(module, "forward", MethodType(_reduced, module))
