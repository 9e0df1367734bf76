"""NVLink multicast stays off: it is refused where it would be called, whatever a candidate says of itself.

The environment of the ranks switches it off in NCCL, NVSHMEM and torch's symmetric memory (`harness.rank_group`). What
asks for it all the same is stopped here: the operators of `torch.ops.symm_mem` that need it, and symmetric memory that
was given a multicast address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PREFIX = "symm_mem::multimem_"
_KEYS = ("CPU", "CUDA")


class MulticastRefusedError(RuntimeError):
    """A call that needs NVLink multicast was stopped before it ran."""


_kept: list[Any] = []
"""The registrations, which end with the object that made them, and the function that was wrapped."""


def forbid_multicast() -> None:
    """From now on every call in this process that needs multicast raises MulticastRefusedError."""
    import torch.distributed._symmetric_memory as symmetric_memory
    from torch._C._distributed_c10d import _SymmetricMemory

    assert symmetric_memory, "its import declares the operators"
    if _kept:
        return
    library = torch.library.Library("symm_mem", "IMPL")
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(_PREFIX):
            for key in _KEYS:
                library.impl(name.partition("::")[2], _refusing(name), key, allow_override=True)
    rendezvous = _SymmetricMemory.rendezvous

    def watched(*args: Any, **kwargs: Any) -> Any:
        handle = rendezvous(*args, **kwargs)
        if handle is not None and handle.multicast_ptr:
            raise MulticastRefusedError(
                "symmetric memory was given a multicast address, and NVLink multicast stays off here "
                "(TORCH_SYMM_MEM_DISABLE_MULTICAST=1)"
            )
        return handle

    _SymmetricMemory.rendezvous = staticmethod(watched)  # type: ignore[method-assign]
    _kept.extend((library, rendezvous))


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise MulticastRefusedError(f"calls {name}, which needs NVLink multicast, and that stays off here")

    return refuse
