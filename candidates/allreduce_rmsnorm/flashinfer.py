"""flashinfer's fused all-reduce on its CUDA-IPC workspace, and its fused norm behind the process group's all-reduce.

Only `trtllm_allreduce_fusion` over a workspace made with `use_symm_dev_mem=False` is called: flashinfer's other
backends (`mnnvl`, `auto`) and newer versions bind NVLink multicast.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from candidates._providers import flashinfer_ipc
from candidates._providers.guards import (
    all_of,
    contiguous,
    half_precision,
    require_same_dtype,
    row_elements_at_most,
    spans_less_than,
)
from candidates.allreduce_rmsnorm.collective import all_reduce_in_place, process_group
from candidates.allreduce_rmsnorm.guards import adds_residual, small_enough_for_one_shot
from candidates.rmsnorm.rounding import ONCE
from harness.op import Device, candidate
from harness.schema.case import Case
from harness.schema.vocabulary import Contract, Kind

_RANKS = (2, 4, 8, 16)
_MAX_WIDTH = 8192
"""A row is one block's, or a cluster's, with eight elements a thread."""


def _built_for(case: Case, device: Device) -> str | None:
    if device.capability[0] not in (9, 10):
        return f"compute capability {device.capability[0]}.{device.capability[1]}: it is built for 9 and 10"
    if case.ranks not in _RANKS:
        return f"{case.ranks} ranks: takes {', '.join(map(str, _RANKS))}"
    return None if case.dims["D"] % 8 == 0 else f"D={case.dims['D']}: takes multiples of 8"


def _more_tokens_than_ranks(case: Case, device: Device) -> str | None:
    T = case.dims["T"]
    return None if case.ranks < T else f"two shots share out tokens: {T} are not more than {case.ranks} ranks"


@functools.cache
def _workspace(group: str, tokens: int, width: int) -> tuple[Tensor, dict[str, Any], Any]:
    """Pointers for the kernel, what they fit, and the handles that keep them; collective, outside graph captures."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the peers' buffers cannot be made inside a graph capture: call the kernel once before")
    ranks = process_group(group)
    create = flashinfer_ipc.function("comm.trtllm_ar", "trtllm_create_ipc_workspace_for_all_reduce_fusion")
    handles, pointers, metadata = create(
        ranks.rank(), ranks.size(), tokens, width, group=ranks, create_metadata=True, use_symm_dev_mem=False
    )
    return pointers, metadata, handles


def _fused(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, *, one_shot: bool
) -> tuple[Tensor, Tensor]:
    require_same_dtype(x, weight)
    y, h = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    tokens, width = x.shape
    if not x.numel():
        return y, h
    ranks = process_group(group)
    # one workspace for all sizes up to a power of two
    pointers, metadata, _ = _workspace(group, 1 << (tokens - 1).bit_length(), width)
    flashinfer_ipc.function("comm.trtllm_ar", "trtllm_allreduce_fusion")(
        allreduce_in=x,
        world_size=ranks.size(),
        world_rank=ranks.rank(),
        token_num=tokens,
        hidden_dim=width,
        workspace_ptrs=pointers,
        launch_with_pdl=True,
        trigger_completion_at_end=True,
        fp32_acc=True,
        pattern_code=flashinfer_ipc.function("comm.trtllm_ar", "AllReduceFusionPattern").kARResidualRMSNorm,
        use_oneshot=one_shot,
        allreduce_out=None,
        residual_in=residual,
        residual_out=h,
        norm_out=y,
        quant_out=None,
        scale_out=None,
        rms_gamma=weight,
        rms_eps=eps,
        scale_factor=None,
        layout_code=None,
        metadata=metadata,
    )
    return y, h


_guard = all_of(
    half_precision,
    contiguous,
    adds_residual,
    row_elements_at_most(_MAX_WIDTH),
    _built_for,
    spans_less_than(1 << 31),
)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer_ipc.PROVIDER,
    kernels=("allreduce_fusion_kernel_oneshot_lamport",),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, small_enough_for_one_shot),
)
def trtllm_one_shot(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x, residual (T, D), weight (D,) of one dtype. Every rank sums everything; data are their own flags."""
    return _fused(x, weight, eps, group, residual, one_shot=True)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer_ipc.PROVIDER,
    kernels=("allreduce_fusion_kernel_twoshot_sync",),
    contract=Contract.TOLERANCE,
    guard=all_of(_guard, _more_tokens_than_ranks),
)
def trtllm_two_shot(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """x, residual (T, D), weight (D,) of one dtype. Every rank sums its share of the tokens."""
    return _fused(x, weight, eps, group, residual, one_shot=False)


@candidate(
    op="allreduce_rmsnorm",
    kind=Kind.CUDA,
    provider=flashinfer_ipc.PROVIDER,
    kernels=(r"norm::FusedAddRMSNormKernel",),
    contract=Contract.TOLERANCE,
    guard=all_of(half_precision, contiguous, adds_residual, spans_less_than(1 << 32)),
    mutates=("x", "residual"),
    returns=("x", "residual"),
)
def nccl_fused_add_rmsnorm(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE
) -> None:
    """x and residual (T, D), weight (D,), one dtype. In place: x becomes the norm, residual the sum."""
    require_same_dtype(x, weight)
    all_reduce_in_place(x, group)
    if x.numel():
        flashinfer_ipc.function("norm", "fused_add_rmsnorm")(x, residual, weight, eps)
