"""sglang's fused residual add + RMSNorm behind the process group's all-reduce, and behind its own custom all-reduce.

The latter is its JIT CUDA module over peer buffers that the caller makes; these are ours, so without multicast
(`use_multicast=False`, and no multicast address is handed over).
"""

import functools
from typing import Any

import torch
from torch import Tensor

from candidates._providers import sglang
from candidates._providers.guards import all_of, contiguous, half_precision, require_same_dtype
from candidates.allreduce_rmsnorm.collective import all_reduce_in_place, process_group
from candidates.allreduce_rmsnorm.guards import adds_residual, small_enough_for_one_shot
from candidates.allreduce_rmsnorm.workspace import PeerMemory, peer_memory
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from harness.op import Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_ALL_REDUCE = "ops.communication.all_reduce"
_PROGRAMS = 132
"""Of a launch, one an SM of an H200; the counters and semaphores are as many."""
_SEMAPHORE_BYTES = 128


def _widths(case: Case, device: Device) -> str | None:
    D = case.dims["D"]
    return None if D % 16 == 0 and D <= 8192 else f"D={D}: takes multiples of 16 up to 8192"


def _all_programs_at_once(case: Case, device: Device) -> str | None:
    if device.sm_count >= _PROGRAMS:
        return None
    return f"launches {_PROGRAMS} programs that wait for each other, the GPU has {device.sm_count} SMs"


def _fused_add(x: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str) -> None:
    run = sglang.function("ops.layernorm.norm", "fused_add_rmsnorm")
    run(x, residual, weight, eps, cast_x_before_out_mul=rounding == BEFORE_WEIGHT)


_guard = all_of(half_precision, contiguous, adds_residual, _widths)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("fused_add_rmsnorm_reg_kernel",),
    contract=Contract.TOLERANCE,
    guard=_guard,
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def nccl_jit_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> None:
    """x and residual (T, D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    all_reduce_in_place(x, group)
    if x.numel():
        _fused_add(x, weight, eps, residual, rounding)


@functools.cache
def _communicator(group: str, device: torch.device, tensor_bytes: int, *, push: bool) -> tuple[Any, PeerMemory]:
    """One plane of its communicator for tensors up to `tensor_bytes`, in peer buffers of ours; collective."""
    ranks = process_group(group).size()
    rank = process_group(group).rank()
    if push:
        memory = peer_memory(group, device, 2 * ranks * tensor_bytes)
        plane = sglang.function(_ALL_REDUCE, "PushPlane")(
            rank,
            ranks,
            workspaces=[memory.view(peer, 0, (2 * ranks, tensor_bytes)) for peer in range(ranks)],
            counter=torch.zeros((_PROGRAMS, 4), dtype=torch.uint8, device=device),
        )
        return sglang.function(_ALL_REDUCE, "Communicator")(push=plane), memory
    semaphores = _PROGRAMS * _SEMAPHORE_BYTES
    memory = peer_memory(group, device, semaphores + tensor_bytes)
    plane = sglang.function(_ALL_REDUCE, "PullPlane")(
        rank,
        ranks,
        workspaces=[memory.view(peer, semaphores, (tensor_bytes,)) for peer in range(ranks)],
        semaphores=[memory.view(peer, 0, (_PROGRAMS, _SEMAPHORE_BYTES)) for peer in range(ranks)],
    )
    return sglang.function(_ALL_REDUCE, "Communicator")(pull=plane), memory


def _custom_all_reduced(x: Tensor, group: str, *, one_shot: bool) -> Tensor:
    if not x.numel():
        return torch.empty_like(x)
    size = 1 << max(x.numel() * x.element_size() - 1, 1 << 20).bit_length()
    communicator, _ = _communicator(group, x.device, size, push=one_shot)
    algorithms = sglang.function(_ALL_REDUCE, "AllReduceAlgo")
    algorithm: Any = algorithms["ONE_SHOT_PUSH" if one_shot else "TWO_SHOT_PULL"]  # type: ignore[index]
    total: Tensor = sglang.function(_ALL_REDUCE, "custom_all_reduce")(communicator, x, algorithm, use_multicast=False)
    return total


def _normed(total: Tensor, weight: Tensor, eps: float, residual: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
    """The norm takes the place of the sum; the residual is copied, for its place may not be returned as an output."""
    require_same_dtype(total, weight)
    h = residual.clone()
    if total.numel():
        _fused_add(total, weight, eps, h, rounding)
    return total, h


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("all_reduce_1shot_push_kernel", "fused_add_rmsnorm_reg_kernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, small_enough_for_one_shot, _all_programs_at_once),
)
def one_shot_push_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x and residual (T, D), weight (D,), one dtype. Its custom all-reduce in one shot, then its norm."""
    return _normed(_custom_all_reduced(x, group, one_shot=True), weight, eps, residual, rounding)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=sglang.JIT_PROVIDER,
    kernels=("all_reduce_2shot_pull_kernel", "fused_add_rmsnorm_reg_kernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, _all_programs_at_once),
)
def two_shot_pull_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x and residual (T, D), weight (D,), one dtype. Its custom all-reduce in two shots, then its norm."""
    return _normed(_custom_all_reduced(x, group, one_shot=False), weight, eps, residual, rounding)
