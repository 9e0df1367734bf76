"""vllm-omni's `AdaLayerNorm` layers: without affine part, scale and shift of the activation's dtype and rank."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from candidates._vllm_omni.layers import FAMILY, Forward, apply_to, sites_of, source
from candidates.adalayernorm.op import OP, VLLM_OMNI
from harness.op import Impl
from harness.wiring import Described, Wiring

KIND = "adalayernorm.AdaLayerNorm"


def _forward_with(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        """x (B, S, D), scale and shift (B, 1, D) or (B, S, D)."""
        # of another dtype they would make the layer's output theirs, and a row of them would be one of tokens
        same = scale.dtype == shift.dtype == x.dtype and scale.ndim == shift.ndim == x.ndim == 3
        if self.elementwise_affine or not same:
            return self.forward_native(x, scale, shift)
        return implementation(x=x, scale=scale, shift=shift, eps=self.eps, formula=VLLM_OMNI)

    return forward


def wiring(nothing: Impl, described: Callable[..., Described]) -> Wiring:
    """As the op's other wirings leave it out and describe its calls."""
    return Wiring(
        op=OP.id,
        family=FAMILY,
        native=OP.native,
        nothing=nothing,
        sites=sites_of(KIND),
        apply=apply_to(KIND, _forward_with),
        described=described,
        native_calls=(r"layer_norm",),
        pinned={source(KIND): "80a0c7b52db2de9a", source("norm.LayerNorm"): "ea12bea33da7286c"},
    )
