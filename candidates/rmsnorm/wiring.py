"""RMSNorm's call sites: the norms of diffusion transformers and of Qwen3-Omni's text models, found by their class.

Four classes, three formulas: torch's; diffusers' and transformers', which round before the weight; and diffusers'
without a weight, in the blocks of LTX-Video.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from candidates.rmsnorm import op
from candidates.rmsnorm.rounding import ONCE
from candidates.rmsnorm.wiring_norms import WiredRMSNorm, described, norms_of
from candidates.rmsnorm.wiring_residual import wiring as residual_wiring
from candidates.rmsnorm.wiring_vllm_omni import wirings as vllm_omni_wirings
from harness.op import Impl
from harness.wiring import Site, Wiring, replaced


def native(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """As the model's class computes it: only `torch.nn.RMSNorm` rounds once after a weight."""
    if weight is not None and rounding == ONCE:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    return op.native(x, weight, eps, rounding)


def nothing(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Tensor:
    """x itself."""
    return x


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every RMSNorm."""
    return tuple(Site(name) for name in norms_of(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Put a module in each norm's place."""
    with ExitStack() as stack:
        for name, norm in norms_of(model).items():
            parent, _, child = name.rpartition(".")
            stack.enter_context(replaced(model.get_submodule(parent), child, WiredRMSNorm(norm, implementation)))
        yield


_TORCH = {"torch.nn:RMSNorm.forward": "624d70ec04d54553"}
_DIFFUSERS = {"diffusers.models.normalization:RMSNorm.forward": "ab9075d036873ac9"}
_MODELING = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"
_OMNI = {
    f"{_MODELING}:Qwen3OmniMoeThinkerTextRMSNorm.forward": "790fa612e4fa57ac",
    f"{_MODELING}:Qwen3OmniMoeTextRMSNorm.forward": "790fa612e4fa57ac",
}
_FUSED, _CHAIN = r"rms_norm", r"rsqrt"
_FAMILIES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "wan": (_TORCH, (_FUSED,)),
    "flux": (_TORCH, (_FUSED,)),
    "ltx_video": (_TORCH | _DIFFUSERS, (_FUSED, _CHAIN)),
    "qwen_image": (_DIFFUSERS, (_CHAIN,)),
    "z_image": (_DIFFUSERS, (_CHAIN,)),
    "qwen3_omni_thinker": (_OMNI, (_CHAIN,)),
    "qwen3_omni_talker": (_OMNI, (_CHAIN,)),
}
_LAYERS = {
    "qwen3_omni_thinker": {
        f"{_MODELING}:Qwen3OmniMoeThinkerTextDecoderLayer.forward": "75d1d62e173e8c57",
        f"{_MODELING}:Qwen3OmniMoeThinkerTextModel.forward": "acdd43d4e85d0ea5",
    },
    "qwen3_omni_talker": {
        f"{_MODELING}:Qwen3OmniMoeTalkerDecoderLayer.forward": "75d1d62e173e8c57",
        f"{_MODELING}:Qwen3OmniMoeTalkerModel.forward": "acdd43d4e85d0ea5",
    },
}
_ALONE = tuple(
    Wiring(
        op="rmsnorm",
        family=family,
        native=native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=native_calls,
        pinned=pinned,
    )
    for family, (pinned, native_calls) in _FAMILIES.items()
)
_RESIDUAL = tuple(residual_wiring(family, _OMNI | pinned) for family, pinned in _LAYERS.items())
WIRINGS = (*_ALONE, *_RESIDUAL, *vllm_omni_wirings(_ALONE[0], _RESIDUAL[0]))
