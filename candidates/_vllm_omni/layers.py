"""vllm-omni's diffusion layers as call sites: an instance of its `CustomOp` calls what its `_forward_method` is.

That attribute is bound when the instance is made, so a forward put into the class later is never called. A wiring sets
it on each instance, before `regionally_compile` compiles the blocks that call it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import nn

from harness.op import Impl
from harness.wiring import Site, replaced

FAMILY = "vllm_omni"
_LAYERS = "vllm_omni.diffusion.layers"

Forward = Callable[..., Any]
"""A layer's forward: the layer, then its arguments."""


def layers_of(model: nn.Module, kind: str) -> dict[str, nn.Module]:
    """The model's layers of the class `kind` (`norm.RMSNorm`) by path, told by name: subclasses are others."""
    name = f"{_LAYERS}.{kind}"
    return {
        path: module
        for path, module in model.named_modules()
        if f"{type(module).__module__}.{type(module).__qualname__}" == name
    }


def sites_of(kind: str) -> Callable[[nn.Module], tuple[Site, ...]]:
    """Every layer of the class, one call in each."""

    def sites(model: nn.Module) -> tuple[Site, ...]:
        return tuple(Site(path) for path in layers_of(model, kind))

    return sites


def apply_to(
    kind: str, forward_with: Callable[[Impl], Forward]
) -> Callable[[nn.Module, Impl], AbstractContextManager[None]]:
    """Every layer of the class calls the forward that is made with the implementation."""

    @contextmanager
    def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
        forward = forward_with(implementation)
        with ExitStack() as stack:
            for layer in layers_of(model, kind).values():
                stack.enter_context(replaced(layer, "_forward_method", MethodType(forward, layer)))
            yield

    return apply


def source(kind: str, method: str = "forward_native") -> str:
    """A method of the class, as `Wiring.pinned` names it."""
    module, _, name = kind.rpartition(".")
    return f"{_LAYERS}.{module}:{name}.{method}"
