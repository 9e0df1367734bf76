"""AdaLayerNorm's call sites: every modulated norm in the blocks of Wan, Qwen-Image and FLUX.1.

Each model's norm_out is left as it is: it stands once a step, in a forward that is not compiled. In Qwen-Image and in
FLUX.1's blocks with two streams the norm before the MLP follows the gated residual add of the attention, and is wired
in the context `residual_gate` as well; elsewhere that pair lies across two blocks, or has no such norm.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from candidates._blocks import flux, qwen_image, wan
from candidates._blocks.pieces import Forward, Pieces, WidePieces, bound
from candidates.adalayernorm import op
from candidates.adalayernorm.op import OP, VLLM_OMNI, WAN
from candidates.adalayernorm.wiring_vllm_omni import wiring as vllm_omni_wiring
from harness.op import Impl
from harness.wiring import Described, Site, Wiring

CONTEXT = "residual_gate"


def stepwise(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """The norm as `torch.nn.LayerNorm` gives it in x's dtype, then modulated in that dtype; x (B, S, D)."""
    return op.modulate(F.layer_norm(x, (x.shape[-1],), None, None, eps), scale, shift)


def nothing(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """x itself."""
    return x


def _nothing_gated(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, residual: Tensor, gate: Tensor
) -> tuple[Tensor, Tensor]:
    return x, residual


class _Alone(Pieces):
    """The implementation for every modulated norm."""

    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def norm_modulate(self, norm: nn.Module, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        return self.implementation(x=x, scale=scale, shift=shift, eps=norm.eps, formula=VLLM_OMNI)


class _WideAlone(WidePieces):
    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def norm_modulate(self, norm: nn.Module, x: Tensor, scale: Tensor, shift: Tensor) -> Any:
        return self.implementation(x=x, scale=scale, shift=shift, eps=norm.eps, formula=WAN)


class _AfterGate(Pieces):
    """The implementation for a gated residual add with the modulated norm that follows it; other norms stay."""

    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def gate_norm_modulate(
        self, norm: nn.Module, residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor
    ) -> Any:
        return self.implementation(
            x=x, scale=scale, shift=shift, eps=norm.eps, formula=VLLM_OMNI, residual=residual, gate=gate
        )


@dataclass(frozen=True)
class _Family:
    """What is particular to one family of models."""

    forwards: Callable[[nn.Module, Impl], list[tuple[nn.Module, Forward]]]
    sites: Callable[[nn.Module], tuple[Site, ...]]
    native: Impl
    pinned: dict[str, str]
    context: str | None = None

    @contextmanager
    def apply(self, model: nn.Module, implementation: Impl) -> Iterator[None]:
        """Bind the forwards of its blocks."""
        with bound(self.forwards(model, implementation)):
            yield


def _wan(model: nn.Module, implementation: Impl) -> list[tuple[nn.Module, Forward]]:
    forward = wan.forward_with(_WideAlone(implementation))
    return [(block, forward) for block in wan.blocks(model).values()]


def _wan_sites(model: nn.Module) -> tuple[Site, ...]:
    return tuple(Site(path, calls=2) for path in wan.blocks(model))


def _qwen_image(model: nn.Module, pieces: Pieces) -> list[tuple[nn.Module, Forward]]:
    forward = qwen_image.forward_with(pieces)
    return [(block, forward) for block in qwen_image.blocks(model).values()]


def _flux_sites(model: nn.Module) -> tuple[Site, ...]:
    """The modules the blocks begin with, and the blocks' own forwards."""
    return (*(Site(path) for path in flux.first_norms(model)), *_flux_gated_sites(model))


def _flux_gated_sites(model: nn.Module) -> tuple[Site, ...]:
    return tuple(Site(path, calls=2) for path in flux.double_blocks(model))


_COMPOSED = OP.context(CONTEXT).compose(stepwise)
_FAMILIES: dict[str, tuple[_Family, ...]] = {
    "wan": (_Family(_wan, _wan_sites, op.native, wan.PINNED),),
    "qwen_image": (
        _Family(
            lambda model, implementation: _qwen_image(model, _Alone(implementation)),
            lambda model: tuple(Site(path, calls=4) for path in qwen_image.blocks(model)),
            stepwise,
            qwen_image.PINNED,
        ),
        _Family(
            lambda model, implementation: _qwen_image(model, _AfterGate(implementation)),
            lambda model: tuple(Site(path, calls=2) for path in qwen_image.blocks(model)),
            _COMPOSED,
            qwen_image.PINNED,
            CONTEXT,
        ),
    ),
    "flux": (
        _Family(
            lambda model, implementation: flux.forwards_with(model, _Alone(implementation)),
            _flux_sites,
            stepwise,
            flux.PINNED,
        ),
        _Family(
            lambda model, implementation: flux.forwards_with(model, _AfterGate(implementation)),
            _flux_gated_sites,
            _COMPOSED,
            flux.PINNED,
            CONTEXT,
        ),
    ),
}


def described(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str, **context: Tensor) -> Described:
    """As the manifest names it: a table of scales is (B, 1, D), or (B, S, D)."""
    modulation = "batch" if scale.shape[1] == 1 else "token"
    dims = dict(zip(("B", "S", "D"), x.shape, strict=True))
    return dims, {"eps": eps, "formula": formula, "modulation": modulation, "frames": 1}


_BLOCKS = tuple(
    Wiring(
        op=OP.id,
        family=family,
        native=one.native,
        nothing=nothing if one.context is None else _nothing_gated,
        sites=one.sites,
        apply=one.apply,
        described=described,
        native_calls=(r"layer_norm",),
        pinned=one.pinned,
        context=one.context,
    )
    for family, wirings in _FAMILIES.items()
    for one in wirings
)
WIRINGS = (*_BLOCKS, vllm_omni_wiring(nothing, described))
