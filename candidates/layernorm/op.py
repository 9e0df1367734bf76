"""LayerNorm over the last dim, as vllm-omni's `LayerNorm.forward_native`: fp32 inside, cast back at the end.

`weights` says what the affine part is: `none`, `activation` (the activation's dtype) or `float32` (Wan keeps `norm2` in
fp32 beside bf16 activations).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case

_WEIGHTS = {"none": None, "activation": None, "float32": torch.float32}


def native(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias in fp32 (fp64 for fp64 inputs), then x's dtype; x (..., D)."""
    acc = torch.promote_types(x.dtype, torch.float32)
    gamma = None if weight is None else weight.to(acc)
    beta = None if bias is None else bias.to(acc)
    return F.layer_norm(x.to(acc), x.shape[-1:], gamma, beta, eps).to(x.dtype)


def fake(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Contiguous, like x."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout; weight about 1 and bias about 0, as in trained checkpoints."""
    weights, width = str(case.params["weights"]), (case.dims["D"],)
    affine, dtype = weights != "none", _WEIGHTS[weights]
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "weight": draw.weight("weight", width, loc=1.0, scale=0.2, dtype=dtype) if affine else None,
        "bias": draw.weight("bias", width, scale=0.2, dtype=dtype) if affine else None,
        "eps": case.params["eps"],
    }


def bytes_moved(case: Case) -> int:
    """x once in, y once out, weight and bias."""
    weight_bytes = {"none": 0, "activation": case.dtype.bytes, "float32": 4}[str(case.params["weights"])]
    return 2 * case.numel * case.dtype.bytes + 2 * case.dims["D"] * weight_bytes


def check(case: Case) -> str | None:
    """`weights` must be one of the three."""
    weights = case.params["weights"]
    return None if weights in _WEIGHTS else f"weights={weights} is none of {', '.join(_WEIGHTS)}"


def _modulate_inputs(case: Case, draw: Draw) -> Args:
    modulation = (case.dims["B"], 1, case.dims["D"])
    return inputs(case, draw) | {
        "scale": draw.weight("scale", modulation, scale=0.2),
        "shift": draw.weight("shift", modulation, scale=0.2),
    }


def _with_modulate(impl: Impl) -> Impl:
    def layernorm_modulate(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, scale: Tensor, shift: Tensor
    ) -> Tensor:
        y: Tensor = impl(x=x, weight=weight, bias=bias, eps=eps)
        return y * (1 + scale) + shift

    return layernorm_modulate


def _modulate_bytes(case: Case) -> int:
    return bytes_moved(case) + 2 * case.dims["B"] * case.dims["D"] * case.dtype.bytes


OP = Op(
    id="layernorm",
    dims=(("B", "S", "D"),),
    params={"eps": float, "weights": str},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="modulate",
            what="LayerNorm -> y * (1 + scale) + shift, scale and shift (B, 1, D): the input of the next linear layer",
            inputs=_modulate_inputs,
            compose=_with_modulate,
            bytes_moved=_modulate_bytes,
        ),
    ),
)
