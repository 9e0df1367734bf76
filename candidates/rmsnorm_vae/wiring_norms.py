"""The norms of VAE decoders, told apart by their class, as calls of the op."""

from typing import Any

from torch import Tensor, nn

from harness.op import Args
from harness.wiring import Described

# by name: a model's library is imported by those who build the model
_CLASSES = ("WanRMS_norm", "QwenImageRMS_norm")
_EPS = 1e-12
"""Of `F.normalize`, which both classes call without one."""
_DIMS = {4: ("N", "C", "H", "W"), 5: ("N", "C", "T", "H", "W")}


def is_norm(module: Any) -> bool:
    """Whether it is such a norm, over dim 1."""
    return type(module).__name__ in _CLASSES and bool(module.channel_first)


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    """The decoder's norms by path."""
    decoder = model.get_submodule("decoder").named_modules(prefix="decoder")
    return {path: module for path, module in decoder if is_norm(module)}


def arguments(norm: Any, x: Tensor) -> Args:
    """The op's arguments for one call on x (N, C, ...)."""
    # without a bias the class has a number there, zero
    bias = norm.bias if isinstance(norm.bias, Tensor) else None
    return {"x": x, "gamma": norm.gamma, "bias": bias, "eps": _EPS, "upcast": True}


def described(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, **context: Tensor) -> Described:
    """As the manifest names it."""
    dims = dict(zip(_DIMS[x.ndim], x.shape, strict=True))
    return dims, {"eps": eps, "upcast": upcast, "bias": bias is not None}
