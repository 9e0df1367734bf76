"""The attention of Qwen3-Omni's text models (transformers): its forward with a `Turn` after the projections."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from candidates._attention.streams import Stream, Turn


def forward_with(turn: Turn) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The forward that does what the library's does, with this turn."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import eager_attention_forward

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: Any,
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states (B, S, C); position_embeddings cos and sin (B, S, D), halves repeated."""
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (project(hidden_states).unflatten(-1, (-1, self.head_dim)) for project in projections)
        q, k = turn((Stream(q, k, self.q_norm, self.k_norm),), (position_embeddings,))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        y, weights = attend(
            self,
            q,
            k,
            v,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **more,
        )
        return self.o_proj(y.flatten(2).contiguous()), weights

    return forward
