"""The all-reduce of the process group's backend (NCCL, gloo): functional for the authority, in place for adapters."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d


def all_reduced(x: Tensor, group: str) -> Tensor:
    """The sum of x over the ranks of `group`, contiguous; x itself for the group "" of one rank.

    Functional, so that `torch.compile` traces it without a break.
    """
    if not group:
        return x
    pending = torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", group)
    total: Tensor = torch.ops._c10d_functional.wait_tensor(pending)
    return total


def process_group(group: str) -> dist.ProcessGroup:
    """The process group of that name; raises RuntimeError when there is none."""
    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    found: dist.ProcessGroup = resolve(group)
    return found


def all_reduce_in_place(x: Tensor, group: str) -> None:
    """x becomes the sum, on the stream that is current, as serving engines call NCCL."""
    if group and x.numel():
        dist.all_reduce(x, group=process_group(group))
