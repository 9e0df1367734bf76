"""GroupNorm+SiLU's call sites: the residual blocks of SD-family VAE decoders, and the pair before their last conv.

Alone and, in HunyuanVideo's, up to the convolution's padded input.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from candidates.groupnorm_silu.op import native
from candidates.groupnorm_silu.wiring_padded import wiring as padded_wiring
from harness.op import Impl
from harness.wiring import Described, Site, Wiring, replaced

_DIMS = {2: ("N", "C"), 4: ("N", "C", "H", "W"), 5: ("N", "C", "T", "H", "W")}


class WiredGroupNormSiLU(nn.Module):
    """Stands in a GroupNorm's place on its parameters and does the SiLU after it as well."""

    def __init__(self, norm: nn.GroupNorm, implementation: Impl) -> None:
        super().__init__()
        self.weight = norm.weight
        self.bias = norm.bias
        self.num_groups = norm.num_groups
        self.eps = norm.eps
        self.implementation = implementation

    def forward(self, x: Tensor) -> Any:
        """x (N, C, ...)."""
        return self.implementation(x=x, weight=self.weight, bias=self.bias, groups=self.num_groups, eps=self.eps)


def nothing(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """x itself."""
    return x


def _pairs(model: nn.Module) -> Iterator[tuple[nn.Module, str, tuple[str, ...], str]]:
    """Owner, its path, its GroupNorms, and its SiLU that follows each of them and nothing else."""
    decoder = model.get_submodule("decoder")
    for path, module in decoder.named_modules(prefix="decoder"):
        for norms, activation in ((("norm1", "norm2"), "nonlinearity"), (("conv_norm_out",), "conv_act")):
            if not isinstance(getattr(module, activation, None), nn.SiLU):
                continue
            # a block with a time embedding sends that through the same SiLU
            if getattr(module, "time_emb_proj", None) is None and all(
                isinstance(getattr(module, norm, None), nn.GroupNorm) for norm in norms
            ):
                yield module, path, norms, activation


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every GroupNorm of the decoder that a SiLU follows."""
    return tuple(Site(f"{path}.{norm}") for _, path, norms, _ in _pairs(model) for norm in norms)


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Put a module in each norm's place and an identity in the SiLU's."""
    with ExitStack() as stack:
        for owner, _, norms, activation in list(_pairs(model)):
            for norm in norms:
                wired = WiredGroupNormSiLU(getattr(owner, norm), implementation)
                stack.enter_context(replaced(owner, norm, wired))
            stack.enter_context(replaced(owner, activation, nn.Identity()))
        yield


def described(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Described:
    """As the manifest names it."""
    return dict(zip(_DIMS[x.ndim], x.shape, strict=True)), {"groups": groups, "eps": eps}


_HUNYUAN = "diffusers.models.autoencoders.autoencoder_kl_hunyuan_video"
_PINNED = {
    "hunyuan_video_vae": {
        f"{_HUNYUAN}:HunyuanVideoResnetBlockCausal3D.forward": "55479a8ef89b96c0",
        f"{_HUNYUAN}:HunyuanVideoDecoder3D.forward": "af8d1cbe75fdaf73",
    },
    "autoencoder_kl": {
        "diffusers.models.resnet:ResnetBlock2D.forward": "e3f38e1722955caf",
        "diffusers.models.autoencoders.vae:Decoder.forward": "be96bf1aec1d895a",
    },
}
_ALONE = tuple(
    Wiring(
        op="groupnorm_silu",
        family=family,
        native=native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"group_norm",),
        pinned=pinned,
    )
    for family, pinned in _PINNED.items()
)
WIRINGS = (
    *_ALONE,
    padded_wiring(
        described,
        _PINNED["hunyuan_video_vae"] | {f"{_HUNYUAN}:HunyuanVideoCausalConv3d.forward": "70f04cf3106c379f"},
    ),
)
