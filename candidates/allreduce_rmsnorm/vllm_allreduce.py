"""vllm's custom all-reduce, in the copy of its kernels that flashinfer carries, then flashinfer's fused norm.

It copies x into a buffer that its peers have mapped and reads theirs: one stage between two GPUs, two stages between
more. vllm hands tensors above 8 MiB to NCCL; so they are declined here.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from candidates._providers import flashinfer_ipc
from candidates._providers.guards import all_of, contiguous, half_precision, require_same_dtype
from candidates.allreduce_rmsnorm.collective import process_group
from candidates.allreduce_rmsnorm.guards import adds_residual
from candidates.allreduce_rmsnorm.workspace import PeerMemory, peer_memory
from candidates.rmsnorm.rounding import ONCE
from harness.op import Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_MAX_BYTES = 8 << 20
_RANK_DATA_BYTES = 8 << 20
_BLOCKS = 36
"""Its upper bound, which is enough to fill the link."""


def _as_vllm_takes_it(case: Case, device: Device) -> str | None:
    size = case.numel * case.dtype.bytes
    if size > _MAX_BYTES:
        return f"{size >> 20} MiB: vllm hands tensors above {_MAX_BYTES >> 20} MiB to NCCL"
    if size % 16:
        return f"{size} bytes: takes multiples of 16"
    return None if case.ranks in (2, 4, 6, 8) else f"{case.ranks} ranks: takes 2, 4, 6 or 8"


@dataclass(frozen=True)
class _Communicator:
    handle: int
    buffer: int
    """Address of this rank's buffer."""
    kept: tuple[Any, ...]


def _function(name: str) -> Any:
    return flashinfer_ipc.function("comm.vllm_ar", name)


@functools.cache
def _communicator(group: str, device: torch.device) -> _Communicator:
    """Its state for the group, flags and buffers in peer memory of ours; collective."""
    ranks = process_group(group)
    # behind its flags lies what two stages exchange
    flags: PeerMemory = peer_memory(group, device, _function("meta_size")() + _MAX_BYTES)
    buffers = peer_memory(group, device, _MAX_BYTES)
    rank_data = torch.empty(_RANK_DATA_BYTES, dtype=torch.uint8, device=device)
    handle: int = _function("init_custom_ar")(list(flags.addresses), rank_data, ranks.rank(), True)
    _function("register_buffer")(handle, list(buffers.addresses))
    return _Communicator(handle, buffers.addresses[ranks.rank()], (flags, buffers, rank_data))


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer_ipc.PROVIDER,
    kernels=(r"cross_device_reduce_[12]stage", r"norm::FusedAddRMSNormKernel"),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, contiguous, adds_residual, _as_vllm_takes_it),
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def vllm_all_reduce_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> None:
    """x and residual (T, D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    if not x.numel():
        return
    ours = _communicator(group, x.device)
    _function("all_reduce")(ours.handle, x, x, ours.buffer, _MAX_BYTES, _BLOCKS)
    flashinfer_ipc.function("norm", "fused_add_rmsnorm")(x, residual, weight, eps)
