"""The AdaLN arithmetic of a block as its model writes it; a wiring overrides what its op replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from harness.wiring import replaced

Forward = Callable[..., Any]


class Pieces:
    """In the activation's dtype: FLUX, Qwen-Image. x (B, S, D); scale, shift, gate (B, 1, D)."""

    def modulate(self, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """y * (1 + scale) + shift."""
        return y * (1 + scale) + shift

    def norm_modulate(self, norm: nn.Module, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """The norm of x, modulated."""
        return self.modulate(norm(x), scale, shift)

    def gate(self, residual: Tensor, x: Tensor, gate: Tensor) -> Tensor:
        """residual + x * gate."""
        return residual + x * gate

    def gate_norm_modulate(
        self, norm: nn.Module, residual: Tensor, x: Tensor, gate: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The modulated norm of residual + x * gate, and that sum."""
        h = self.gate(residual, x, gate)
        return self.norm_modulate(norm, h, scale, shift), h


class WidePieces(Pieces):
    """In fp32, rounded once at the end: Wan. Tables are fp32, (B, 1, D) or a row per token (B, S, D)."""

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        """The norm of x, not modulated."""
        y: Tensor = norm(x.float())
        return y.type_as(x)

    def norm_modulate(self, norm: nn.Module, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """See `Pieces.norm_modulate`."""
        return self.modulate(norm(x.float()), scale, shift).type_as(x)

    def gate(self, residual: Tensor, x: Tensor, gate: Tensor) -> Tensor:
        """See `Pieces.gate`."""
        return (residual.float() + x.float() * gate).type_as(residual)


@contextmanager
def bound(forwards: list[tuple[nn.Module, Forward]]) -> Iterator[None]:
    """Bind a forward to each module for the while."""
    with ExitStack() as stack:
        for module, forward in forwards:
            stack.enter_context(replaced(module, "forward", MethodType(forward, module)))
        yield
