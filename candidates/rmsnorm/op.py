"""RMSNorm over the last dim, as vllm-omni's `RMSNorm.forward_native`: fp32 inside, one rounding at the end.

`rounding` names the formula. `once` is vllm-omni's and `torch.nn.RMSNorm`'s, with a weight or without one.
`before_weight` is that of transformers' RMSNorms and of `diffusers.models.normalization.RMSNorm`: rounded to the
activation's dtype, then multiplied by a weight of that dtype. On a weight of another dtype those two classes differ,
and neither returns the activation's dtype, so here it is an error; without a weight both are `once`.
"""

import torch
from torch import Tensor

from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, require_one_dtype, variant
from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case, Layout


def native(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """(w * x * rsqrt(mean(x²) + eps)) in fp32 (fp64 for fp64 inputs), then x's dtype. x (..., D), weight (D,).

    Raises ValueError for a rounding there is not, and for `before_weight` with a weight of another dtype than x.
    """
    if rounding not in (ONCE, BEFORE_WEIGHT):
        raise ValueError(f"rounding={rounding!r} is neither {ONCE} nor {BEFORE_WEIGHT}")
    acc = torch.promote_types(x.dtype, torch.float32)
    x_acc = x.to(acc)
    normed = x_acc * torch.rsqrt(x_acc.pow(2).mean(dim=-1, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    if rounding == ONCE:
        return (weight.to(acc) * normed).to(x.dtype)
    require_one_dtype(x, weight)
    return normed.to(x.dtype) * weight


def fake(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """Contiguous, like x."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout, sliced heads as views of a packed projection; weight about 1, as in trained ones."""
    return {
        "x": _activation("x", case, draw),
        "weight": draw.weight("weight", (case.dims["D"],), loc=1.0, scale=0.2) if case.params["weight"] else None,
        "eps": case.params["eps"],
        **variant(str(case.params["rounding"])),
    }


def _activation(name: str, case: Case, draw: Draw) -> Tensor:
    if case.layout is not Layout.SLICED or len(case.shape) < 4:
        return draw.activation(name, case.shape, case.layout)
    heads = case.shape[-2:]
    flat = draw.activation(name, (*case.shape[:-2], heads[0] * heads[1]), case.layout)
    unflattened: Tensor = flat.unflatten(-1, heads)
    return unflattened


def bytes_moved(case: Case) -> int:
    """x once in, y once out, and the weight."""
    return (2 * case.numel + _weight_elements(case)) * case.dtype.bytes


def check(case: Case) -> str | None:
    """`rounding` is one of the two, and without a weight there is nothing to round before."""
    rounding = case.params["rounding"]
    if rounding not in (ONCE, BEFORE_WEIGHT):
        return f"rounding={rounding} is neither {ONCE} nor {BEFORE_WEIGHT}"
    if rounding == BEFORE_WEIGHT and not case.params["weight"]:
        return f"rounding={BEFORE_WEIGHT} needs a weight; without one write rounding={ONCE}"
    return None


def _weight_elements(case: Case) -> int:
    return case.dims["D"] if case.params["weight"] else 0


def _residual_inputs(case: Case, draw: Draw) -> Args:
    return inputs(case, draw) | {"residual": _activation("residual", case, draw)}


def _with_residual(impl: Impl) -> Impl:
    def residual_add_rmsnorm(
        x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE
    ) -> tuple[Tensor, Tensor]:
        h = x + residual
        return impl(x=h, weight=weight, eps=eps, **variant(rounding)), h

    return residual_add_rmsnorm


def _residual_bytes(case: Case) -> int:
    return (4 * case.numel + _weight_elements(case)) * case.dtype.bytes


OP = Op(
    id="rmsnorm",
    dims=(("T", "D"), ("B", "S", "D"), ("B", "S", "H", "D")),
    params={"eps": float, "rounding": str, "weight": bool},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="residual_add",
            what="h = x + residual -> RMSNorm(h), both returned",
            inputs=_residual_inputs,
            compose=_with_residual,
            bytes_moved=_residual_bytes,
        ),
    ),
)
