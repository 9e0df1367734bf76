"""RMSNorm candidates whose faults need a GPU: streams, capture, copies, tuning in place, illegal addresses."""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.rmsnorm.launch import rmsnorm
from candidates.rmsnorm.op import native
from harness.op import Args, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

_LARGE = 1024


def _kernel(kernels: str = r"rmsnorm_(tile|long)", **more):  # type: ignore[no-untyped-def]
    return candidate(
        op="rmsnorm", kind=Kind.TRITON, provider=EVIL, kernels=(kernels,), contract=Contract.TOLERANCE, **more
    )


@_kernel()
def honest_kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right and engaged."""
    return rmsnorm(x, weight, eps)


def _weight_of_its_own(args: Args) -> Args:
    return args | {"weight": args["weight"].clone()}


@_kernel(prepare=_weight_of_its_own)
def prepared_kernel(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Honest as well; nothing but the clock keeps the weight that it is given."""
    return rmsnorm(x, weight, eps)


_side: list[torch.cuda.Stream] = []


@_kernel()
def side_stream(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Does half of the work on a stream of its own, properly joined: right, but the clock follows one stream."""
    if not _side:
        _side.append(torch.cuda.Stream())
    here, side = torch.cuda.current_stream(), _side[0]
    side.wait_stream(here)
    with torch.cuda.stream(side):
        y = rmsnorm(x, weight, eps)
    here.wait_stream(side)
    y.record_stream(here)
    return y + 0


_kept: dict[tuple[int, torch.Size, tuple[int, ...]], Tensor] = {}


@_kernel()
def only_before_capture(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launches its kernel whenever it is called, but not into a graph: there it hands out what it has."""
    key = (x.data_ptr(), x.shape, x.stride())
    if torch.cuda.is_current_stream_capturing() and key in _kept:
        return _kept[key]
    y = rmsnorm(x, weight, eps)
    if x.numel() > _LARGE:
        _kept[key] = y
        return y.clone()
    return y


@_kernel()
def clones_first(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, behind an adapter that clones: the copy is in the timed part."""
    return rmsnorm(x.clone(), weight, eps)


@_kernel("never_there")
def falls_back(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, by aten's kernels instead of its own."""
    return native(x, weight, eps).contiguous()


@triton.autotune(configs=[triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 512})], key=["n"])
@triton.jit
def _double_in_place(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x * 2, mask=i < n)


def _double(x: Tensor) -> None:
    n = x.numel()
    _double_in_place[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)


def _dense_only(case, device):  # type: ignore[no-untyped-def]
    return None if case.layout in ("contiguous", "odd_stride") and case.numel else "dense tensors alone"


@_kernel("_double_in_place", mutates=("x",), returns=("x",), guard=_dense_only)
def tuned_in_place(x: Tensor, weight: Tensor, eps: float) -> None:
    """Half of the norm, then an autotuned kernel that doubles it in place: tuning runs it on its input many times."""
    x.copy_((native(x, weight, eps).float() * 0.5).to(x.dtype))
    _double(x)


@triton.jit
def _write_far_away(x_ptr, offset):  # type: ignore[no-untyped-def]
    tl.store(x_ptr + offset, 1.0)


if os.environ.get("EVIL_CRASHES") == "illegal_address":

    @_kernel()
    def illegal_address(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Right, and a write of one element far outside of any allocation."""
        y = rmsnorm(x, weight, eps)
        if x.numel() > _LARGE:
            _write_far_away[(1,)](x, 1 << 44)
        return y
