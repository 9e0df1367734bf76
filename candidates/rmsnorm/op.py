"""RMSNorm over the last dim, as vllm-omni's `RMSNorm.forward_native`: fp32 inside, one rounding at the end."""

import torch
from torch import Tensor

from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case


def native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(w * x * rsqrt(mean(x²) + eps)) in fp32 (fp64 for fp64 inputs), then x's dtype. x (..., D), weight (D,)."""
    acc = torch.promote_types(x.dtype, torch.float32)
    x_acc = x.to(acc)
    inverse_rms = torch.rsqrt(x_acc.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (weight.to(acc) * (x_acc * inverse_rms)).to(x.dtype)


def fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Contiguous, like x."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout; weight about 1, as in trained checkpoints."""
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "weight": draw.weight("weight", (case.dims["D"],), loc=1.0, scale=0.2),
        "eps": case.params["eps"],
    }


def bytes_moved(case: Case) -> int:
    """x once in, y once out, and the weight."""
    return (2 * case.numel + case.dims["D"]) * case.dtype.bytes


def _residual_inputs(case: Case, draw: Draw) -> Args:
    return inputs(case, draw) | {"residual": draw.activation("residual", case.shape, case.layout)}


def _with_residual(impl: Impl) -> Impl:
    def residual_add_rmsnorm(x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return impl(x=h, weight=weight, eps=eps), h

    return residual_add_rmsnorm


def _residual_bytes(case: Case) -> int:
    return (4 * case.numel + case.dims["D"]) * case.dtype.bytes


OP = Op(
    id="rmsnorm",
    dims=(("T", "D"), ("B", "S", "D"), ("B", "S", "H", "D")),
    params={"eps": float},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
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
