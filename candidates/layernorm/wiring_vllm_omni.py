"""vllm-omni's `LayerNorm` layers, those inside its `AdaLayerNorm` among them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from candidates._vllm_omni.layers import FAMILY, Forward, apply_to, sites_of, source
from candidates.layernorm.op import OP
from harness.op import Impl
from harness.wiring import Described, Wiring

KIND = "norm.LayerNorm"


def _forward_with(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor) -> Any:
        """x (B, S, D)."""
        return implementation(x=x, weight=self.weight, bias=self.bias, eps=self.eps)

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
        pinned={source(KIND): "ea12bea33da7286c"},
    )
