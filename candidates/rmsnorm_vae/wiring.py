"""RMSNormVAE's call sites: every norm in the decoders of the Wan and Qwen-Image VAEs, alone and up to a convolution.

Wan's chunks follow each other with caches (`silu_cache_pad`); an image is one chunk, without (`silu_pad`).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from candidates.rmsnorm_vae.op import OP
from candidates.rmsnorm_vae.wiring_norms import arguments, described, norms_of
from candidates.rmsnorm_vae.wiring_padded import CACHED, FIRST
from candidates.rmsnorm_vae.wiring_padded import wiring as padded_wiring
from harness.op import Impl
from harness.wiring import Site, Wiring, replaced


class WiredRMSNormVAE(nn.Module):
    """Stands in a norm's place on its parameters."""

    def __init__(self, norm: Any, implementation: Impl) -> None:
        super().__init__()
        self.gamma = norm.gamma
        self.bias = norm.bias
        self.implementation = implementation

    def forward(self, x: Tensor) -> Any:
        """x (N, C, ...)."""
        return self.implementation(**arguments(self, x))


def nothing(x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool) -> Tensor:
    """x itself."""
    return x


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every norm of the decoder."""
    return tuple(Site(path) for path in norms_of(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Put a module in each norm's place."""
    with ExitStack() as stack:
        for path, norm in norms_of(model).items():
            parent, _, child = path.rpartition(".")
            stack.enter_context(replaced(model.get_submodule(parent), child, WiredRMSNormVAE(norm, implementation)))
        yield


_WAN = "diffusers.models.autoencoders.autoencoder_kl_wan"
_QWEN_IMAGE = "diffusers.models.autoencoders.autoencoder_kl_qwenimage"
_PINNED = {
    "wan_vae": {f"{_WAN}:WanRMS_norm.forward": "fc44101b65138738"},
    "qwen_image_vae": {f"{_QWEN_IMAGE}:QwenImageRMS_norm.forward": "fc44101b65138738"},
}
_PADDED = {
    "wan_vae": (
        CACHED,
        {
            f"{_WAN}:WanResidualBlock.forward": "82e9104df2acf11a",
            f"{_WAN}:WanCausalConv3d.forward": "afffb99acd515ba2",
            f"{_WAN}:WanDecoder3d.forward": "927efe06256e3b6d",
        },
    ),
    "qwen_image_vae": (
        FIRST,
        {
            f"{_QWEN_IMAGE}:QwenImageResidualBlock.forward": "fbb57ee09695bcd6",
            f"{_QWEN_IMAGE}:QwenImageCausalConv3d.forward": "afffb99acd515ba2",
            f"{_QWEN_IMAGE}:QwenImageDecoder3d.forward": "15e80f12b5d26379",
        },
    ),
}
_ALONE = tuple(
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
WIRINGS = (
    *_ALONE,
    *(padded_wiring(family, context, _PINNED[family] | pinned) for family, (context, pinned) in _PADDED.items()),
)
