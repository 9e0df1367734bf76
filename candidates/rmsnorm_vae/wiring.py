"""RMSNormVAE's call sites: every norm in the decoders of the Wan and Qwen-Image VAEs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from candidates.rmsnorm_vae.op import OP
from harness.op import Impl
from harness.wiring import Described, Site, Wiring, replaced

# by name: a model's library is imported by those who build the model
_CLASSES = ("WanRMS_norm", "QwenImageRMS_norm")
_EPS = 1e-12
"""Of `F.normalize`, which both classes call without one."""
_DIMS = {4: ("N", "C", "H", "W"), 5: ("N", "C", "T", "H", "W")}


class WiredRMSNormVAE(nn.Module):
    """Stands in a norm's place on its parameters."""

    def __init__(self, norm: Any, implementation: Impl) -> None:
        super().__init__()
        self.gamma = norm.gamma
        # without one the class has a number there, zero
        self.bias = norm.bias if isinstance(norm.bias, Tensor) else None
        self.implementation = implementation

    def forward(self, x: Tensor) -> Any:
        """x (N, C, ...)."""
        return self.implementation(x=x, gamma=self.gamma, bias=self.bias, eps=_EPS, upcast=True)


def nothing(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x itself."""
    return x


def _norms(model: nn.Module) -> dict[str, nn.Module]:
    """The decoder's norms by path."""
    decoder = model.get_submodule("decoder").named_modules(prefix="decoder")
    found: dict[str, Any] = {path: module for path, module in decoder if type(module).__name__ in _CLASSES}
    return {path: module for path, module in found.items() if module.channel_first}


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every norm of the decoder."""
    return tuple(Site(path) for path in _norms(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Put a module in each norm's place."""
    with ExitStack() as stack:
        for path, norm in _norms(model).items():
            parent, _, child = path.rpartition(".")
            stack.enter_context(replaced(model.get_submodule(parent), child, WiredRMSNormVAE(norm, implementation)))
        yield


def described(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Described:
    """As the manifest names it."""
    dims = dict(zip(_DIMS[x.ndim], x.shape, strict=True))
    return dims, {"eps": eps, "upcast": upcast, "bias": bias is not None}


_AUTOENCODERS = "diffusers.models.autoencoders"
_PINNED = {
    "wan_vae": {f"{_AUTOENCODERS}.autoencoder_kl_wan:WanRMS_norm.forward": "fc44101b65138738"},
    "qwen_image_vae": {f"{_AUTOENCODERS}.autoencoder_kl_qwenimage:QwenImageRMS_norm.forward": "fc44101b65138738"},
}
WIRINGS = tuple(
    Wiring(
        op=OP.id,
        family=family,
        native=OP.native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"functional\.normalize",),
        pinned=pinned,
    )
    for family, pinned in _PINNED.items()
)
