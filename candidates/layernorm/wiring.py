"""LayerNorm's call sites: the norm before Wan's cross-attention, the only one in its blocks that nothing modulates.

The others of Wan and all of Qwen-Image and FLUX.1 are AdaLayerNorm's. Its weights stay in fp32 beside bf16 activations.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from candidates._blocks import wan
from candidates._blocks.pieces import WidePieces, bound
from candidates.layernorm.op import OP
from candidates.layernorm.wiring_vllm_omni import wiring as vllm_omni_wiring
from harness.op import Impl
from harness.wiring import Described, Site, Wiring


class _Wired(WidePieces):
    """The implementation for the norm that is not modulated."""

    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def norm(self, norm: nn.Module, x: Tensor) -> Any:
        return self.implementation(x=x, weight=norm.weight, bias=norm.bias, eps=norm.eps)


def nothing(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """x itself."""
    return x


def _blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks that have such a norm (`cross_attn_norm`), by path."""
    return {path: block for path, block in wan.blocks(model).items() if isinstance(block.norm2, nn.LayerNorm)}


def sites(model: nn.Module) -> tuple[Site, ...]:
    """That norm in every block."""
    return tuple(Site(f"{path}.norm2") for path in _blocks(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Bind the forwards of its blocks."""
    forward = wan.forward_with(_Wired(implementation))
    with bound([(block, forward) for block in _blocks(model).values()]):
        yield


def described(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Described:
    """As the manifest names it."""
    own = weight is not None and weight.dtype == x.dtype
    weights = "none" if weight is None else "activation" if own else "float32"
    return dict(zip(("B", "S", "D"), x.shape, strict=True)), {"eps": eps, "weights": weights}


WIRINGS = (
    Wiring(
        op=OP.id,
        family="wan",
        native=OP.native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"layer_norm",),
        pinned=wan.PINNED,
    ),
    vllm_omni_wiring(nothing, described),
)
