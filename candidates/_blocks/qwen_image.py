"""QwenImageTransformerBlock (diffusers)."""

from typing import Any

import torch
from torch import Tensor, nn

from candidates._blocks.pieces import Forward, Pieces

PINNED = {
    "diffusers.models.transformers.transformer_qwenimage:QwenImageTransformerBlock.forward": "89de238db44a7a47",
    "diffusers.models.transformers.transformer_qwenimage:QwenImageTransformerBlock._modulate": "9ee78b512057d504",
    "torch.nn:LayerNorm.forward": "fa5d78b85670946f",
}
_FP16_MAX = torch.finfo(torch.float16).max


def blocks(model: nn.Module) -> dict[str, Any]:
    """The model's blocks by path, but for those that choose one of two modulations per token (Qwen-Image-Edit)."""
    found: dict[str, Any] = {
        f"transformer_blocks.{name}": block
        for name, block in model.get_submodule("transformer_blocks").named_children()
    }
    return {path: block for path, block in found.items() if not block.zero_cond_t}


def _tables(params: Tensor) -> tuple[Tensor, ...]:
    """Shift, scale and gate before attention, then before the MLP: six of (B, 1, D). params (B, 6 * D)."""
    return tuple(chunk.unsqueeze(1) for half in params.chunk(2, dim=-1) for chunk in half.chunk(3, dim=-1))


def _clipped(x: Tensor) -> Tensor:
    return x.clip(-_FP16_MAX, _FP16_MAX) if x.dtype == torch.float16 else x


def forward_with(pieces: Pieces) -> Forward:
    """The block's forward with these pieces."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None,
        temb: Tensor,
        image_rotary_emb: Any = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
        modulate_index: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert modulate_index is None, "only blocks with zero_cond_t choose a modulation per token"
        image, text = hidden_states, encoder_hidden_states
        shift1, scale1, gate1, shift2, scale2, gate2 = _tables(self.img_mod(temb))
        txt_shift1, txt_scale1, txt_gate1, txt_shift2, txt_scale2, txt_gate2 = _tables(self.txt_mod(temb))
        attended, txt_attended = self.attn(
            hidden_states=pieces.norm_modulate(self.img_norm1, image, scale1, shift1),
            encoder_hidden_states=pieces.norm_modulate(self.txt_norm1, text, txt_scale1, txt_shift1),
            encoder_hidden_states_mask=encoder_hidden_states_mask,
            image_rotary_emb=image_rotary_emb,
            **(joint_attention_kwargs or {}),
        )
        x, image = pieces.gate_norm_modulate(self.img_norm2, image, attended, gate1, scale2, shift2)
        image = pieces.gate(image, self.img_mlp(x), gate2)
        x, text = pieces.gate_norm_modulate(self.txt_norm2, text, txt_attended, txt_gate1, txt_scale2, txt_shift2)
        text = pieces.gate(text, self.txt_mlp(x), txt_gate2)
        return _clipped(text), _clipped(image)

    return forward
