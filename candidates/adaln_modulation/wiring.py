"""adaLN modulation's call sites: modulations and gated residual adds in the blocks of Wan, Qwen-Image and FLUX.1.

The norm before a modulation stays the model's own. Wan's hands on fp32, so there the op is called on fp32 and the
model rounds after it. Each model's norm_out is left as it is: it stands once a step, in a forward that is not compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from candidates._blocks import flux, qwen_image, wan
from candidates._blocks.pieces import Forward, Pieces, WidePieces, bound
from candidates.adaln_modulation.op import OP, Form, Per
from harness.op import Args, Impl
from harness.wiring import Described, Site, Wiring


def _modulation(y: Tensor, scale: Tensor, shift: Tensor) -> Args:
    return {
        "x": y, "scale": scale, "shift": shift, "residual": None, "index": None, "scale_constant": 1, "upcast": False,
    }  # fmt: skip


def _gate(residual: Tensor, x: Tensor, gate: Tensor) -> Args:
    return {
        "x": x, "scale": gate, "shift": None, "residual": residual, "index": None, "scale_constant": 0, "upcast": False,
    }  # fmt: skip


class _Wired(Pieces):
    """The implementation for every modulation and gate."""

    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def modulate(self, y: Tensor, scale: Tensor, shift: Tensor) -> Any:
        return self.implementation(**_modulation(y, scale, shift))

    def gate(self, residual: Tensor, x: Tensor, gate: Tensor) -> Any:
        return self.implementation(**_gate(residual, x, gate))


class _WideWired(WidePieces):
    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def modulate(self, y: Tensor, scale: Tensor, shift: Tensor) -> Any:
        return self.implementation(**_modulation(y, scale, shift))

    def gate(self, residual: Tensor, x: Tensor, gate: Tensor) -> Any:
        return self.implementation(**_gate(residual, x, gate))


def nothing(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x itself."""
    return x


def _wan(model: nn.Module, implementation: Impl) -> list[tuple[nn.Module, Forward]]:
    forward = wan.forward_with(_WideWired(implementation))
    return [(block, forward) for block in wan.blocks(model).values()]


def _qwen_image(model: nn.Module, implementation: Impl) -> list[tuple[nn.Module, Forward]]:
    forward = qwen_image.forward_with(_Wired(implementation))
    return [(block, forward) for block in qwen_image.blocks(model).values()]


def _flux(model: nn.Module, implementation: Impl) -> list[tuple[nn.Module, Forward]]:
    return flux.forwards_with(model, _Wired(implementation))


def _flux_sites(model: nn.Module) -> tuple[Site, ...]:
    """Two modulations and four gates in a block with two streams, beside those of the modules the blocks begin with."""
    return (
        *(Site(path, calls=6) for path in flux.double_blocks(model)),
        *(Site(path) for path in flux.single_blocks(model)),
        *(Site(path) for path in flux.first_norms(model)),
    )


def _apply(forwards: Callable[[nn.Module, Impl], list[tuple[nn.Module, Forward]]]) -> Any:
    @contextmanager
    def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
        """Bind the forwards of its blocks."""
        with bound(forwards(model, implementation)):
            yield

    return apply


def described(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Described:  # fmt: skip
    """As the manifest names it: tables (B, 1, D) or (B, S, D), each a chunk of a row that is some chunks wide."""
    per = Per.BATCH if scale.shape[1] == 1 else Per.TOKEN
    row = scale.stride(0) if per is Per.BATCH else scale.stride(1)
    return dict(zip(("B", "S", "D"), x.shape, strict=True)), {
        "form": str(Form.SCALE_SHIFT if residual is None else Form.GATE),
        "scale_per": str(per),
        "shift_per": str(per if shift is not None else Per.NONE),
        "rows": 1,
        "chunks": max(1, row // x.shape[-1]),
        "table": str(scale.dtype).removeprefix("torch."),
        "scale_constant": scale_constant,
        "upcast": upcast,
    }


def _wan_sites(model: nn.Module) -> tuple[Site, ...]:
    return tuple(Site(path, calls=4) for path in wan.blocks(model))


def _qwen_image_sites(model: nn.Module) -> tuple[Site, ...]:
    return tuple(Site(path, calls=8) for path in qwen_image.blocks(model))


_FAMILIES = {
    "wan": (_wan, _wan_sites, wan.PINNED),
    "qwen_image": (_qwen_image, _qwen_image_sites, qwen_image.PINNED),
    "flux": (_flux, _flux_sites, flux.PINNED),
}
WIRINGS = tuple(
    Wiring(
        op=OP.id,
        family=family,
        native=OP.native,
        nothing=nothing,
        sites=sites,
        apply=_apply(forwards),
        described=described,
        native_calls=(r"operator\.mul",),
        pinned=pinned,
    )
    for family, (forwards, sites, pinned) in _FAMILIES.items()
)
