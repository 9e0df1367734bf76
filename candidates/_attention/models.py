"""The attentions of each family of models, and how a `Turn` is put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch import nn

from candidates._attention import omni
from candidates._attention.processors import (
    FluxProcessor,
    LtxProcessor,
    Processor,
    QwenImageProcessor,
    WanProcessor,
    ZImageProcessor,
)
from candidates._attention.streams import Turn
from harness.wiring import replaced

_DIFFUSERS = "diffusers.models"
_TRANSFORMERS = f"{_DIFFUSERS}.transformers"
_OMNI = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"


def _any(path: str, attention: Any) -> bool:
    return True


def _self_attention(path: str, attention: Any) -> bool:
    return path.rpartition(".")[2] == "attn1"


@dataclass(frozen=True)
class Attentions:
    """Which attentions of a family rotate, and what stands for their processor."""

    stands_for: str
    """Class of the processor, or of the attention where it has none; others are left alone."""
    pinned: Mapping[str, str]
    """As `Wiring.pinned`."""
    processor: Callable[..., Processor] | None = None
    rotates: Callable[[str, Any], bool] = _any

    def of(self, model: nn.Module) -> dict[str, Any]:
        """The model's attentions by path; those with fused projections or keys of an image are not among them."""
        return {
            path: module
            for path, module in model.named_modules()
            if self._stood_for(module)
            and self.rotates(path, module)
            and not getattr(module, "fused_projections", False)
            and not (self.processor is WanProcessor and module.add_k_proj is not None)
        }

    def _stood_for(self, module: Any) -> bool:
        kind = type(module if self.processor is None else getattr(module, "processor", None))
        return f"{kind.__module__}.{kind.__qualname__}" == self.stands_for

    @contextmanager
    def turned(self, model: nn.Module, turn: Turn) -> Iterator[None]:
        """Every attention uses the turn until the context is left."""
        with ExitStack() as stack:
            if self.processor is None:
                forward = omni.forward_with(turn)
                for attention in self.of(model).values():
                    stack.enter_context(replaced(attention, "forward", MethodType(forward, attention)))
            else:
                from diffusers.models.attention_dispatch import dispatch_attention_fn

                for attention in self.of(model).values():
                    processor = self.processor(attention.processor, turn, dispatch_attention_fn)
                    stack.enter_context(replaced(attention, "processor", processor))
            yield


def _processor(of: str, processor: type[Processor], pinned: dict[str, str], **more: Any) -> Attentions:
    return Attentions(f"{_TRANSFORMERS}.{of.replace(':', '.')}", pinned, processor, **more)


_ATTENTION = {f"{_DIFFUSERS}.attention_processor:Attention.forward": "e6822ac3500626c7"}
_OMNI_ATTENTION = Attentions(
    f"{_OMNI}.Qwen3OmniMoeThinkerTextAttention",
    {
        f"{_OMNI}:Qwen3OmniMoeThinkerTextAttention.forward": "6c8fb032ff374243",
        f"{_OMNI}:apply_rotary_pos_emb": "ea234325c15de475",
        f"{_OMNI}:Qwen3OmniMoeThinkerTextRMSNorm.forward": "790fa612e4fa57ac",
    },
)
ATTENTIONS = {
    "wan": _processor(
        "transformer_wan:WanAttnProcessor",
        WanProcessor,
        {
            f"{_TRANSFORMERS}.transformer_wan:WanAttnProcessor.__call__": "13c09feedcfe814a",
            f"{_TRANSFORMERS}.transformer_wan:WanAttention.forward": "babdd64efbbb28c8",
        },
        rotates=_self_attention,
    ),
    "flux": _processor(
        "transformer_flux:FluxAttnProcessor",
        FluxProcessor,
        {
            f"{_TRANSFORMERS}.transformer_flux:FluxAttnProcessor.__call__": "d5b36134887ebe45",
            f"{_TRANSFORMERS}.transformer_flux:FluxAttention.forward": "b3d9909f9ecc8879",
            f"{_DIFFUSERS}.embeddings:apply_rotary_emb": "a25267d425f8c5ea",
        },
    ),
    "qwen_image": _processor(
        "transformer_qwenimage:QwenDoubleStreamAttnProcessor2_0",
        QwenImageProcessor,
        {
            f"{_TRANSFORMERS}.transformer_qwenimage:QwenDoubleStreamAttnProcessor2_0.__call__": "e6dfad13458f15b3",
            f"{_TRANSFORMERS}.transformer_qwenimage:apply_rotary_emb_qwen": "62c3cf93c5e4d4eb",
            **_ATTENTION,
        },
    ),
    "z_image": _processor(
        "transformer_z_image:ZSingleStreamAttnProcessor",
        ZImageProcessor,
        {f"{_TRANSFORMERS}.transformer_z_image:ZSingleStreamAttnProcessor.__call__": "f8f65d350a617957", **_ATTENTION},
    ),
    "ltx_video": _processor(
        "transformer_ltx:LTXVideoAttnProcessor",
        LtxProcessor,
        {
            f"{_TRANSFORMERS}.transformer_ltx:LTXVideoAttnProcessor.__call__": "cac2aabbea3a63db",
            f"{_TRANSFORMERS}.transformer_ltx:LTXAttention.forward": "f23e3f6d57751c29",
            f"{_TRANSFORMERS}.transformer_ltx:apply_rotary_emb": "fa3a0a3ad5c63101",
        },
        rotates=_self_attention,
    ),
    "qwen3_omni_thinker": _OMNI_ATTENTION,
    "qwen3_omni_talker": _OMNI_ATTENTION,
}
"""By module of `harness.e2e.models`."""
