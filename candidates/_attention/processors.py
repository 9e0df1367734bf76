"""Processors of diffusers' attentions: what the library's do, with a `Turn` between projections and attention."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates._attention.streams import Stream, Turn


class Processor:
    """Stands in a processor's place with its attention backend and parallel configuration."""

    def __init__(self, of: Any, turn: Turn, attend: Callable[..., Tensor]) -> None:
        self._attention_backend = of._attention_backend
        self._parallel_config = of._parallel_config
        self.turn = turn
        self.attend = attend

    def attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention of (B, S, H, D) each as (B, S, H * D)."""
        y = self.attend(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=0.0,
            is_causal=False,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        return y.flatten(2, 3).to(q.dtype)


def _projected(attn: Any, x: Tensor, heads: int) -> tuple[Stream, Tensor]:
    """The stream of x (B, S, C), and its v."""
    q, k, v = (project(x).unflatten(-1, (heads, -1)) for project in (attn.to_q, attn.to_k, attn.to_v))
    return Stream(q, k, attn.norm_q, attn.norm_k), v


def _projected_text(attn: Any, x: Tensor, heads: int) -> tuple[Stream, Tensor]:
    """The stream of text x (B, S, C), and its v."""
    projections = attn.add_q_proj, attn.add_k_proj, attn.add_v_proj
    q, k, v = (project(x).unflatten(-1, (heads, -1)) for project in projections)
    return Stream(q, k, attn.norm_added_q, attn.norm_added_k), v


def _out(attn: Any, x: Tensor) -> Tensor:
    for module in attn.to_out:
        x = module(x)
    return x


class WanProcessor(Processor):
    """Self-attention of text-to-video; the norms are across heads."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: Any = None,
    ) -> Tensor:
        """hidden_states (B, S, C); rotary_emb cos and sin (1, S, 1, D), each value twice."""
        assert encoder_hidden_states is None
        stream, v = _projected(attn, hidden_states, attn.heads)
        q, k = self.turn((stream,), (rotary_emb,))
        return _out(attn, self.attended(q, k, v, attention_mask))


class FluxProcessor(Processor):
    """Double-stream blocks, text before image, and single-stream blocks."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        """hidden_states (B, S, C); image_rotary_emb cos and sin (S, D) of the joined tokens, each value twice."""
        image, v = _projected(attn, hidden_states, attn.heads)
        if encoder_hidden_states is None:
            q, k = self.turn((image,), (image_rotary_emb,))
            return self.attended(q, k, v, attention_mask)
        text, text_v = _projected_text(attn, encoder_hidden_states, attn.heads)
        q, k = self.turn((text, image), (image_rotary_emb,))
        y = self.attended(q, k, torch.cat((text_v, v), dim=1), attention_mask)
        text_y, image_y = y.tensor_split((text_v.shape[1],), dim=1)
        return _out(attn, image_y.contiguous()), attn.to_add_out(text_y.contiguous())


class QwenImageProcessor(Processor):
    """Double-stream blocks, text before image."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> tuple[Tensor, Tensor]:
        """Both hidden states (B, S, C), the text's mask (B, S); image_rotary_emb complex (S, D / 2), of image and text.

        Like the library's it takes no other mask.
        """
        assert attention_mask is None
        text_mask = encoder_hidden_states_mask
        if text_mask is not None:
            ones = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device)
            attention_mask = torch.cat((text_mask, ones), dim=1)[:, None, None, :]
        image, v = _projected(attn, hidden_states, attn.heads)
        text, text_v = _projected_text(attn, encoder_hidden_states, attn.heads)
        image_table, text_table = image_rotary_emb
        q, k = self.turn((text, image), (text_table, image_table))
        y = self.attended(q, k, torch.cat((text_v, v), dim=1), attention_mask)
        text_y, image_y = y.tensor_split((text_v.shape[1],), dim=1)
        return _out(attn, image_y.contiguous()), attn.to_add_out(text_y.contiguous())


class ZImageProcessor(Processor):
    """One stream of text and image."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        freqs_cis: Tensor | None = None,
    ) -> Tensor:
        """hidden_states (B, S, C), the mask (B, S); freqs_cis complex (B, S, D / 2)."""
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask[:, None, None, :]
        stream, v = _projected(attn, hidden_states, attn.heads)
        q, k = self.turn((stream,), (freqs_cis,))
        return _out(attn, self.attended(q, k, v, attention_mask))


class LtxProcessor(Processor):
    """Self-attention; norms and rotation are over all heads as one."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Tensor:
        """hidden_states (B, S, C); image_rotary_emb cos and sin (B, S, H * D), each value twice."""
        assert encoder_hidden_states is None
        assert attention_mask is None
        stream, v = _projected(attn, hidden_states, 1)
        q, k = self.turn((stream,), (image_rotary_emb,))
        q, k, v = (x.flatten(2).unflatten(2, (attn.heads, -1)) for x in (q, k, v))
        return _out(attn, self.attended(q, k, v))
