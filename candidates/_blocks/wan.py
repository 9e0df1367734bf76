"""WanTransformerBlock (diffusers)."""

from typing import Any

from torch import Tensor, nn

from candidates._blocks.pieces import Forward, WidePieces

PINNED = {
    "diffusers.models.transformers.transformer_wan:WanTransformerBlock.forward": "21c15441b009932c",
    "diffusers.models.normalization:FP32LayerNorm.forward": "fb3a8812f75a9d83",
}


def blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The model's blocks by path. Its norm_out stands outside them, in the forward that nobody compiles."""
    return {f"blocks.{name}": block for name, block in model.get_submodule("blocks").named_children()}


def _tables(block: Any, temb: Tensor) -> tuple[Tensor, ...]:
    """Shift, scale and gate of self-attention, then of the feed-forward, in fp32: (B, 1, D), or (B, S, D).

    temb (B, 6, D), or a row per token (B, S, 6, D) as in Wan 2.2 TI2V.
    """
    per_token = temb.ndim == 4
    table = block.scale_shift_table.unsqueeze(0) if per_token else block.scale_shift_table
    chunks: tuple[Tensor, ...] = (table + temb.float()).chunk(6, dim=temb.ndim - 2)
    return tuple(chunk.squeeze(2) for chunk in chunks) if per_token else chunks


def forward_with(pieces: WidePieces) -> Forward:
    """The block's forward with these pieces."""

    def forward(
        self: Any, hidden_states: Tensor, encoder_hidden_states: Tensor, temb: Tensor, rotary_emb: Any
    ) -> Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = _tables(self, temb)
        x = pieces.norm_modulate(self.norm1, hidden_states, scale, shift)
        hidden_states = pieces.gate(hidden_states, self.attn1(x, None, None, rotary_emb), gate)
        x = pieces.norm(self.norm2, hidden_states)
        hidden_states = hidden_states + self.attn2(x, encoder_hidden_states, None, None)
        x = pieces.norm_modulate(self.norm3, hidden_states, mlp_scale, mlp_shift)
        return pieces.gate(hidden_states, self.ffn(x), mlp_gate)

    return forward
