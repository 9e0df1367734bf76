"""Memory that all ranks of a group write to: one buffer a rank, mapped by all, made on first use and kept.

On GPUs it is torch's symmetric memory, which maps the peers' allocations over NVLink; multicast stays off and is
checked to be. On a CPU, where Triton's interpreter rehearses the kernels in as many processes, it is a file in shared
memory. One stream at a time may use a workspace: the launches on it are counted in order.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from candidates.allreduce_rmsnorm.collective import process_group

MULTICAST_OFF = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
_ALIGNMENT = 1 << 21
"""Halves are multiples of 2 MiB, the granularity of mapped memory: few sizes, hence few workspaces."""


@dataclass(frozen=True)
class PeerMemory:
    """One buffer a rank, all mapped here."""

    addresses: tuple[int, ...]
    """Of the ranks' buffers in this process, by rank."""
    kept: Any
    """What keeps them mapped: on GPUs this rank's buffer and torch's handle to all."""
    offset: int = 0
    """Bytes from where torch's handle begins to where the buffers do."""

    def view(self, rank: int, offset: int, shape: tuple[int, ...]) -> Tensor:
        """Bytes of a rank's buffer from `offset` on, as uint8; on GPUs only."""
        found: Tensor = self.kept[1].get_buffer(rank, shape, torch.uint8, self.offset + offset)
        return found


@dataclass(frozen=True)
class Workspace:
    """Buffers of one size for one group."""

    rank: int
    ranks: int
    programs: int
    """Most programs that a launch may have: what the smallest GPU among the ranks offers."""
    flag_bytes: int
    """Where the two halves begin: before them lie the flags."""
    half_bytes: int
    bases: Tensor
    """(ranks,) int64: addresses of the ranks' buffers in this process."""
    state: Tensor
    """(2,) int32: launches so far, and programs that have left the current one."""
    memory: PeerMemory
    """What `bases` points to."""


_made: dict[tuple[str, torch.device, int], Workspace] = {}


def workspace(group: str, device: torch.device, half_bytes: int, programs: int) -> Workspace:
    """The group's workspace with halves of at least `half_bytes`. `programs` is what this device offers a launch.

    The first call of a size is collective: all ranks must make it. Raises as `peer_memory`.
    """
    half_bytes = -(-half_bytes // _ALIGNMENT) * _ALIGNMENT
    key = (group, device, half_bytes)
    if key not in _made:
        _made[key] = _make(group, device, half_bytes, programs)
    return _made[key]


def _make(group: str, device: torch.device, half_bytes: int, programs: int) -> Workspace:
    ranks = process_group(group)
    agreed = torch.tensor(programs, device=device)
    dist.all_reduce(agreed, dist.ReduceOp.MIN, group=ranks)
    programs = int(agreed)
    # two meetings a launch, one flag for each program and rank
    flag_bytes = -(-2 * programs * ranks.size() * 4 // 128) * 128
    bytes_each = flag_bytes + 2 * half_bytes
    make = peer_memory if device.type == "cuda" else _shared_file
    memory = make(group, device, bytes_each)
    return Workspace(
        rank=ranks.rank(),
        ranks=ranks.size(),
        programs=programs,
        flag_bytes=flag_bytes,
        half_bytes=half_bytes,
        bases=torch.tensor(memory.addresses, dtype=torch.int64, device=device),
        state=torch.zeros(2, dtype=torch.int32, device=device),
        memory=memory,
    )


def peer_memory(group: str, device: torch.device, bytes_each: int) -> PeerMemory:
    """Zeroed memory on every rank's GPU that all ranks of the group can write to; collective.

    Raises RuntimeError inside a graph capture, and when multicast is not off.
    """
    import torch.distributed._symmetric_memory as symmetric

    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the peers' buffers cannot be made inside a graph capture: call the kernel once before")
    if os.environ.get(MULTICAST_OFF) != "1":
        raise RuntimeError(f"set {MULTICAST_OFF}=1 before the process starts: these kernels run without multicast")
    buffer = symmetric.empty(bytes_each, dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(buffer, process_group(group))
    if handle.multicast_ptr:
        raise RuntimeError(f"torch mapped a multicast address although {MULTICAST_OFF}=1; it must not")
    buffer.zero_()
    handle.barrier()
    # torch may have cut the buffer out of a larger one, at the same place on all ranks
    offset = buffer.data_ptr() - handle.buffer_ptrs[handle.rank]
    return PeerMemory(tuple(address + offset for address in handle.buffer_ptrs), (buffer, handle), offset)


def _shared_file(group: str, device: torch.device, bytes_each: int) -> PeerMemory:
    """The same as parts of one file in shared memory, whose name is gone once all have mapped it."""
    ranks = process_group(group)
    path: list[str | None] = [None]
    if ranks.rank() == 0:
        in_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        number, made = tempfile.mkstemp(prefix="peer-buffers-", dir=in_memory)
        os.truncate(number, ranks.size() * bytes_each)
        os.close(number)
        path[0] = made
    dist.broadcast_object_list(path, group=ranks, group_src=0)
    assert path[0] is not None
    whole = torch.from_file(path[0], shared=True, size=ranks.size() * bytes_each, dtype=torch.uint8)
    dist.barrier(group=ranks)
    if ranks.rank() == 0:
        Path(path[0]).unlink()
    return PeerMemory(tuple(whole.data_ptr() + rank * bytes_each for rank in range(ranks.size())), whole)
