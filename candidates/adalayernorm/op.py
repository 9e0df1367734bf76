"""AdaLayerNorm: LayerNorm without affine part, then modulation, `LN(x) * (1 + scale) + shift`.

Two formulas, told apart by `formula`:

* `vllm-omni`: its `AdaLayerNorm.forward_native`; the norm is cast back to x's dtype, then modulated in that dtype.
* `wan`: diffusers' `WanTransformerBlock`; norm and modulation in fp32 with fp32 scale and shift, one cast at the end.

Scale and shift come as (B, D), (B, 1, D), per frame (B, F, 1, D) or per token (B, S, D); the case's `modulation` says
which, and `frame-token` is a scale per frame with a shift per token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case

VLLM_OMNI, WAN = "vllm-omni", "wan"
_MODULATIONS = ("batch-2d", "batch", "frame", "frame-token", "token")


def _spread(m: Tensor, tokens: int) -> Tensor:
    """A modulation as something that broadcasts against (B, S, D); per frame it becomes a copy per token."""
    if m.ndim == 2:
        return m[:, None]
    if m.ndim == 4:
        return m.expand(-1, -1, tokens // m.shape[1], -1).flatten(1, 2)
    return m


def modulate(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """y * (1 + scale) + shift, y (B, S, D)."""
    return y * (1 + _spread(scale, y.shape[1])) + _spread(shift, y.shape[1])


def native(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """LN(x) * (1 + scale) + shift; x (B, S, D). Statistics in fp32 (fp64 for fp64 inputs)."""
    y = F.layer_norm(x.to(torch.promote_types(x.dtype, torch.float32)), x.shape[-1:], None, None, eps)
    if formula == VLLM_OMNI:
        y = y.to(x.dtype)
    return modulate(y, scale, shift).to(x.dtype)


def fake(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """Contiguous, like x."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _modulation_shape(case: Case, per_token: bool = False) -> tuple[int, ...]:
    """Shape of a scale, shift or gate of the case; `per_token` for the shift of `frame-token`."""
    b, s, d = case.shape
    modulation = "token" if per_token else str(case.params["modulation"])
    if modulation in ("frame", "frame-token"):
        return b, int(case.params["frames"]), 1, d
    return {"batch-2d": (b, d), "batch": (b, 1, d), "token": (b, s, d)}[modulation]


def _shapes(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return _modulation_shape(case), _modulation_shape(case, case.params["modulation"] == "frame-token")


def _modulation_dtype(case: Case) -> torch.dtype | None:
    return torch.float32 if case.params["formula"] == WAN else None


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout; scale and shift of the size they have in trained models, some tenths.

    A larger shift would cancel large norms, whose rounding native does not share with anybody.
    """
    scale, shift = _shapes(case)
    dtype = _modulation_dtype(case)
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "scale": draw.weight("scale", scale, scale=0.2, dtype=dtype),
        "shift": draw.weight("shift", shift, scale=0.2, dtype=dtype),
        "eps": case.params["eps"],
        "formula": case.params["formula"],
    }


def _modulation_bytes(case: Case, *shapes: tuple[int, ...]) -> int:
    item = 4 if case.params["formula"] == WAN else case.dtype.bytes
    return sum(torch.Size(shape).numel() for shape in shapes) * item


def bytes_moved(case: Case) -> int:
    """x once in, y once out, scale and shift."""
    return 2 * case.numel * case.dtype.bytes + _modulation_bytes(case, *_shapes(case))


def check(case: Case) -> str | None:
    """Formula and modulation must be known, and tokens must divide into frames."""
    modulation, frames, formula = (case.params[name] for name in ("modulation", "frames", "formula"))
    if modulation not in _MODULATIONS:
        return f"modulation={modulation} is none of {', '.join(_MODULATIONS)}"
    if formula not in (VLLM_OMNI, WAN):
        return f"formula={formula} is neither {VLLM_OMNI} nor {WAN}"
    per_frame = modulation in ("frame", "frame-token")
    if not isinstance(frames, int) or (frames != 1 if not per_frame else frames < 1 or case.dims["S"] % frames):
        return f"frames={frames} must divide S={case.dims['S']}, and be 1 where modulation={modulation} has no frames"
    return None


def _residual_inputs(case: Case, draw: Draw) -> Args:
    gate = draw.weight("gate", _modulation_shape(case), scale=0.5, dtype=_modulation_dtype(case))
    return inputs(case, draw) | {"residual": draw.activation("residual", case.shape, case.layout), "gate": gate}


def _with_residual(impl: Impl) -> Impl:
    def residual_gate_adalayernorm(
        x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
    ) -> tuple[Tensor, Tensor]:
        update = x * _spread(gate, x.shape[1])
        h = (residual.to(update.dtype) + update).to(x.dtype)
        return impl(x=h, scale=scale, shift=shift, eps=eps, formula=formula), h

    return residual_gate_adalayernorm


def _residual_bytes(case: Case) -> int:
    scale, shift = _shapes(case)
    return 4 * case.numel * case.dtype.bytes + _modulation_bytes(case, scale, shift, scale)


OP = Op(
    id="adalayernorm",
    dims=(("B", "S", "D"),),
    params={"eps": float, "formula": str, "modulation": str, "frames": int},
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="residual_gate",
            what="h = residual + x * gate -> AdaLayerNorm(h), both returned",
            inputs=_residual_inputs,
            compose=_with_residual,
            bytes_moved=_residual_bytes,
        ),
    ),
)
