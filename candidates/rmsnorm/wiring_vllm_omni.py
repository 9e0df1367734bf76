"""vllm-omni's `RMSNorm` layers, alone and with the residual add that they take along when they are given one."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from candidates._vllm_omni.layers import FAMILY, Forward, apply_to, sites_of, source
from candidates.rmsnorm.op import OP
from harness.op import Impl
from harness.wiring import Wiring

KIND = "norm.RMSNorm"
_RESIDUAL = "residual_add"


def _alone(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        """x (..., D)."""
        if residual is not None:
            return self.forward_native(x, residual)
        return implementation(x=x, weight=self.weight, eps=self.variance_epsilon)

    return forward


def _with_residual(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        """x (..., D), and the residual of its shape."""
        if residual is None:
            return self.forward_native(x)
        return implementation(x=x, weight=self.weight, eps=self.variance_epsilon, residual=residual)

    return forward


def wirings(alone: Wiring, added: Wiring) -> tuple[Wiring, ...]:
    """Alone and with the residual add, left out and described as in these of the op's other wirings."""
    first = Wiring(
        op=OP.id,
        family=FAMILY,
        native=OP.native,
        nothing=alone.nothing,
        sites=sites_of(KIND),
        apply=apply_to(KIND, _alone),
        described=alone.described,
        native_calls=(r"rsqrt",),
        pinned={source(KIND): "e425e0e3faa34023"},
    )
    composed = OP.context(_RESIDUAL).compose(OP.native)
    with_residual = apply_to(KIND, _with_residual)
    second = replace(
        first, native=composed, nothing=added.nothing, apply=with_residual, described=added.described, context=_RESIDUAL
    )
    return first, second
