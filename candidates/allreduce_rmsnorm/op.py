"""All-reduce over the ranks of one host, then the residual add, then RMSNorm: h = sum(x) + residual, y = RMSNorm(h).

Every rank holds a partial sum x (T, D), as the output of a row-parallel linear is, and the whole residual stream; each
ends with y and h for all tokens. The residual is a param of the case and not a context, unlike in `rmsnorm`: pre-norm
decoders never normalise a reduced tensor without it, and every fused kernel takes the three steps as one, so that is
what is measured alone. `residual: false` is the call behind a vocab-parallel embedding, whose sum itself becomes the
residual stream; h is the sum then.

Bytes. `bytes_moved` is what one rank's own memory must move: x and the residual in, y and h out, each once. It is a
floor for any algorithm, so being faster than a copy of that size is a fault of the measurement here as anywhere. What
crosses NVLink comes on top and is no part of it, since no copy on one GPU tells that link's rate: each rank must
receive 2 (R - 1) / R tensors of x's size when every element is summed in one place (reduce-scatter and all-gather, the
"bus bandwidth" of nccl-tests, doc/PERFORMANCE.md), R - 1 when every rank sums everything (one-shot). `link_bytes` says
how many. The honest roofline of a large case is therefore that of the link, 450 GB/s a direction on NVLink 4 with 18
links; the copy's is printed because the harness prints it, and is far away.
"""

import torch
from torch import Tensor

from candidates.allreduce_rmsnorm.collective import all_reduced
from candidates.rmsnorm import op as rmsnorm
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, variant
from harness.op import Args, Draw, Op
from harness.schema.case import Case


def native(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """(RMSNorm(h), h) of x and residual (T, D), weight (D,); the sum and h are rounded to x's dtype, as models do.

    `group` is the name of the ranks' process group, "" for one rank. Raises ValueError as RMSNorm's native does.
    """
    total = all_reduced(x, group)
    h = total if residual is None else total + residual
    return rmsnorm.native(h, weight, eps, rounding), h


def fake(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> tuple[Tensor, Tensor]:
    """Both contiguous, like x in shape and dtype."""
    return tuple(torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))  # type: ignore[return-value]


def inputs(case: Case, draw: Draw) -> Args:
    """x differs from rank to rank; residual and weight are the same on all, as tensor parallelism keeps them."""
    args: Args = {
        "x": draw.activation("x", case.shape, case.layout),
        "weight": draw.weight("weight", (case.dims["D"],), loc=1.0, scale=0.2),
        "eps": case.params["eps"],
        "group": draw.group,
        **variant(str(case.params["rounding"])),
    }
    if case.params["residual"]:
        args["residual"] = draw.weight("residual", case.shape)
    return args


def bytes_moved(case: Case) -> int:
    """Of one rank's memory: x, y, h, the residual where there is one, and the weight."""
    tensors = 4 if case.params["residual"] else 3
    return (tensors * case.numel + case.dims["D"]) * case.dtype.bytes


def link_bytes(case: Case, *, one_shot: bool) -> int:
    """What each rank receives over the link: 2 (R - 1) / R tensors, or R - 1 of them in one shot."""
    tensor = case.numel * case.dtype.bytes
    return (case.ranks - 1) * tensor if one_shot else 2 * (case.ranks - 1) * tensor // case.ranks


def check(case: Case) -> str | None:
    """More ranks than one, and a rounding there is."""
    if case.ranks < 2:
        return f"ranks is {case.ranks}, there is nothing to reduce; write 2 or more"
    rounding = case.params["rounding"]
    return None if rounding in (ONCE, BEFORE_WEIGHT) else f"rounding={rounding} is neither {ONCE} nor {BEFORE_WEIGHT}"


OP = Op(
    id="allreduce_rmsnorm",
    dims=(("T", "D"),),
    params={"eps": float, "rounding": str, "residual": bool},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
)
