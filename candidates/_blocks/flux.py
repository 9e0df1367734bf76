"""FluxTransformerBlock and FluxSingleTransformerBlock (diffusers), and the AdaLayerNormZero modules they begin with."""

from typing import Any

import torch
from torch import Tensor, nn

from candidates._blocks.pieces import Forward, Pieces

_FLUX = "diffusers.models.transformers.transformer_flux"
_NORMS = "diffusers.models.normalization"
PINNED = {
    f"{_FLUX}:FluxTransformerBlock.forward": "0b184cbe172708b6",
    f"{_FLUX}:FluxSingleTransformerBlock.forward": "57350a6dab842b40",
    f"{_NORMS}:AdaLayerNormZero.forward": "93374820c014f812",
    f"{_NORMS}:AdaLayerNormZeroSingle.forward": "d48dfb2b1e75e64f",
    "torch.nn:LayerNorm.forward": "fa5d78b85670946f",
}
_FP16_MAX = torch.finfo(torch.float16).max


def double_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks with two streams, by path."""
    return _children(model, "transformer_blocks")


def single_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks with one stream, by path."""
    return _children(model, "single_transformer_blocks")


def first_norms(model: nn.Module) -> tuple[str, ...]:
    """Paths of the AdaLayerNormZero modules that the blocks begin with."""
    double = [f"{path}.{norm}" for path in double_blocks(model) for norm in ("norm1", "norm1_context")]
    return (*double, *(f"{path}.norm" for path in single_blocks(model)))


def _children(model: nn.Module, name: str) -> dict[str, nn.Module]:
    return {f"{name}.{index}": block for index, block in model.get_submodule(name).named_children()}


def _clipped(x: Tensor) -> Tensor:
    return x.clip(-_FP16_MAX, _FP16_MAX) if x.dtype == torch.float16 else x


def _zero_with(pieces: Pieces) -> Forward:
    """AdaLayerNormZero's forward: the modulated norm, and shift, scale and gates of (B, D) as it hands them on."""

    def forward(self: Any, x: Tensor, emb: Tensor) -> tuple[Tensor, ...]:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.linear(self.silu(emb)).chunk(6, dim=1)
        return (
            pieces.norm_modulate(self.norm, x, scale[:, None], shift[:, None]),
            gate,
            mlp_shift,
            mlp_scale,
            mlp_gate,
        )

    return forward


def _zero_single_with(pieces: Pieces) -> Forward:
    """AdaLayerNormZeroSingle's forward."""

    def forward(self: Any, x: Tensor, emb: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale, gate = self.linear(self.silu(emb)).chunk(3, dim=1)
        return pieces.norm_modulate(self.norm, x, scale[:, None], shift[:, None]), gate

    return forward


def _double_with(pieces: Pieces) -> Forward:
    def forward(
        self: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        image_rotary_emb: Any = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        image, text = hidden_states, encoder_hidden_states
        x, gate, *mlp = self.norm1(image, emb=temb)
        txt_x, txt_gate, *txt_mlp = self.norm1_context(text, emb=temb)
        # with an IP adapter's, the branch outputs are three
        attended, txt_attended, *adapter = self.attn(
            hidden_states=x,
            encoder_hidden_states=txt_x,
            image_rotary_emb=image_rotary_emb,
            **(joint_attention_kwargs or {}),
        )
        shift, scale, mlp_gate = (table[:, None] for table in mlp)
        x, image = pieces.gate_norm_modulate(self.norm2, image, attended, gate[:, None], scale, shift)
        image = pieces.gate(image, self.ff(x), mlp_gate)
        for output in adapter:
            image = image + output
        shift, scale, mlp_gate = (table[:, None] for table in txt_mlp)
        x, text = pieces.gate_norm_modulate(self.norm2_context, text, txt_attended, txt_gate[:, None], scale, shift)
        text = pieces.gate(text, self.ff_context(x), mlp_gate)
        return _clipped(text), image

    return forward


def _single_with(pieces: Pieces) -> Forward:
    def forward(
        self: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        image_rotary_emb: Any = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        text_tokens = encoder_hidden_states.shape[1]
        residual = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        x, gate = self.norm(residual, emb=temb)
        mlp = self.act_mlp(self.proj_mlp(x))
        attended = self.attn(hidden_states=x, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {}))
        joint = _clipped(pieces.gate(residual, self.proj_out(torch.cat([attended, mlp], dim=2)), gate.unsqueeze(1)))
        return joint[:, :text_tokens], joint[:, text_tokens:]

    return forward


def forwards_with(model: nn.Module, pieces: Pieces) -> list[tuple[nn.Module, Forward]]:
    """Every module whose arithmetic it is, with its forward on these pieces."""
    double, single = _double_with(pieces), _single_with(pieces)
    zero, zero_single = _zero_with(pieces), _zero_single_with(pieces)
    forwards: list[tuple[nn.Module, Forward]] = []
    for block in double_blocks(model).values():
        norms = [block.get_submodule(name) for name in ("norm1", "norm1_context")]
        forwards += [(block, double), *((norm, zero) for norm in norms)]
    for block in single_blocks(model).values():
        forwards += [(block, single), (block.get_submodule("norm"), zero_single)]
    return forwards
