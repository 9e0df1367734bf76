"""Residual add and RMSNorm as one call in Qwen3-Omni's text models.

Decoder layers hand each other (branch output, residual) instead of their sum, so that the sum is taken with the norm
that follows it: the next layer's first one, or the model's last. The first norm of all follows no add and stays.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from candidates.rmsnorm.op import OP
from candidates.rmsnorm.rounding import ONCE
from candidates.rmsnorm.wiring_norms import Formula, described, formula_of
from harness.op import Impl
from harness.wiring import Described, Site, Wiring, replaced

CONTEXT = "residual_add"
Pair = tuple[Tensor, Tensor]


class _AddNorm:
    """The implementation as (branch output, residual) -> (norm of their sum, their sum), by one norm's formula."""

    def __init__(self, implementation: Impl, formula: Formula) -> None:
        self.implementation = implementation
        self.formula = formula

    def __call__(self, norm: nn.Module, x: Tensor, residual: Tensor) -> Pair:
        pair: Pair = self.implementation(**self.formula.arguments(x, norm.weight), residual=residual)  # type: ignore[arg-type]
        return pair


class WiredFinalNorm(nn.Module):
    """Stands in the last norm's place and takes what the last layer hands on."""

    def __init__(self, norm: nn.Module, implementation: Impl) -> None:
        super().__init__()
        self.weight = norm.weight
        self.add_norm = _AddNorm(implementation, formula_of(norm))

    def forward(self, hidden_states: Pair) -> Tensor:
        """(branch output, residual) of (B, S, D) each."""
        return self.add_norm(self, *hidden_states)[0]


def _forwards(add_norm: _AddNorm) -> tuple[Any, Any]:
    """The forwards of the first decoder layer and of the others."""

    def rest(layer: Any, normed: Tensor, residual: Tensor, **more: Any) -> Pair:
        attended, _ = layer.self_attn(hidden_states=normed, **more)
        normed, residual = add_norm(layer.post_attention_layernorm, attended, residual)
        return layer.mlp(normed), residual

    def first(self: Any, hidden_states: Tensor, **more: Any) -> Pair:
        # a kernel that works in place must not write to the model's input
        return rest(self, self.input_layernorm(hidden_states), hidden_states.clone(), **more)

    def following(self: Any, hidden_states: Pair, **more: Any) -> Pair:
        return rest(self, *add_norm(self.input_layernorm, *hidden_states), **more)

    return first, following


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every norm of the hidden state but the first."""
    layers = range(len(model.get_submodule("layers")))  # type: ignore[arg-type]
    after_attention = [Site(f"layers.{i}.post_attention_layernorm") for i in layers]
    after_mlp = [Site(f"layers.{i}.input_layernorm") for i in layers[1:]]
    return (*after_attention, *after_mlp, Site("norm"))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Bind forwards to the layers and put a module in the last norm's place."""
    layers = list(model.get_submodule("layers").children())
    norm = model.get_submodule("norm")
    first, following = _forwards(_AddNorm(implementation, formula_of(norm)))
    with ExitStack() as stack:
        for index, layer in enumerate(layers):
            for name in ("input_layernorm", "post_attention_layernorm"):
                assert formula_of(layer.get_submodule(name)) == formula_of(norm), (index, name)
            stack.enter_context(replaced(layer, "forward", MethodType(following if index else first, layer)))
        stack.enter_context(replaced(model, "norm", WiredFinalNorm(norm, implementation)))
        yield


def nothing(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE) -> Pair:
    """x and the residual themselves."""
    return x, residual


def _described(x: Tensor, weight: Tensor | None, eps: float, residual: Tensor, rounding: str = ONCE) -> Described:
    return described(x, weight, eps, rounding)


def wiring(family: str, pinned: dict[str, str]) -> Wiring:
    """The wiring of one of Qwen3-Omni's text models."""
    return Wiring(
        op=OP.id,
        family=family,
        native=OP.context(CONTEXT).compose(OP.native),
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=_described,
        native_calls=(r"rsqrt",),
        pinned=pinned,
        context=CONTEXT,
    )
