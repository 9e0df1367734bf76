"""Decoder-only language models: one run is a prefill, or one token with a filled key-value cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import StaticCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function, sdpa_mask

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw

_REPEATABLE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention of one token whose sums have one order: all but cuDNN's."""


class Text(Family):
    """Sizes: batch, tokens, and `past` for a cache that already holds so many.

    The cache is the library's static one, its key, values and lengths in place, so that a run can be captured.

    A decode keeps attention from cuDNN, which torch prefers on Hopper. There cuDNN (9.19, H200) does not give one token
    the same bits each time: now and then a value is one bf16 ULP off, presumably by the order in which blocks add up
    their share of the keys, and 48 layers of routed experts make 0.8 of it.

    Nor does one token that fills the cache get a mask: it would hide nothing and rule flash attention out. So the
    library itself decodes with its dynamic cache; a static one, which need not be full, it gives a mask. What torch
    takes on the H200 without one (flash, with the heads grouped, by its rules), whether that repeats and how long it
    takes is not yet measured.
    """

    library = "transformers"
    config_class: ClassVar[Any]

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """See `Family.build`."""
        model: nn.Module = self.model_class(self.config_class(**config, attn_implementation="sdpa"))
        return model

    def compiled(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """See `Family.compiled`: the decoder layers."""
        return tuple(model.layers)  # type: ignore[arg-type]

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`."""
        config: Any = model.config
        batch, tokens, past = sizes["batch"], sizes["tokens"], sizes.get("past", 0)
        positions = torch.arange(past, past + tokens, device=draw.device).view(1, 1, -1).expand(4, batch, -1)
        inputs: Inputs = {
            "inputs_embeds": draw.activation("embeddings", (batch, tokens, config.hidden_size)),
            "position_ids": positions,
            "use_cache": False,
        }
        return inputs | ({"past_key_values": self._cache(config, batch, tokens, past, draw)} if past else {})

    def run(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """See `Family.run`. The cache forgets what the run before appended to it."""
        if (cache := inputs.get("past_key_values")) is None:
            return self._output(model, inputs)
        cache.lengths.fill_(cache.past)
        with sdpa_kernel(_REPEATABLE), _unmasked_at(cache.past):
            return self._output(model, inputs)

    def attention_limits(self, inputs: Inputs) -> str:
        """See `Family.attention_limits`."""
        if (cache := inputs.get("past_key_values")) is None:
            return ""
        sees_all = _sees_all(cache.past, inputs["inputs_embeds"].shape[1], cache.layers[0].keys.shape[2])
        return "without cuDNN or mask" if sees_all else "without cuDNN"

    def in_fp32(self, inputs: Inputs) -> Inputs:
        """See `Family.in_fp32`: with a cache of its own that holds the same values."""
        upcast = super().in_fp32(inputs)
        if (cache := inputs.get("past_key_values")) is not None:
            layers = [(layer.keys.float(), layer.values.float()) for layer in cache.layers]
            upcast["past_key_values"] = _cache_of(cache.of, cache.past, layers)
        return upcast

    def _output(self, model: nn.Module, inputs: Inputs) -> Tensor:
        output: Tensor = model(**inputs).last_hidden_state
        return output

    def _cache(self, config: Any, batch: int, tokens: int, past: int, draw: Draw) -> Any:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (batch, config.num_key_value_heads, past + tokens, head_dim)
        layers = [
            (draw.activation(f"keys {layer}", shape), draw.activation(f"values {layer}", shape))
            for layer in range(config.num_hidden_layers)
        ]
        return _cache_of(config, past, layers)


def _sees_all(past: int, tokens: int, keys: int) -> bool:
    """Whether there is one token, and after `past` others it has the last of the keys."""
    return tokens == 1 and keys == past + tokens


@contextmanager
def _unmasked_at(past: int) -> Iterator[None]:
    """Let the library's SDPA go without a causal mask for one token that sees all keys of a cache, `past` and its own.

    Decided here and not by the library's own rule, which cannot know that a static cache is full, and which makes every
    mask while a CUDA graph is captured: the run that is captured would not be the one that was compiled.
    """

    def mask(**asked: Any) -> Tensor | None:
        causal = asked["mask_function"] is causal_mask_function and asked["attention_mask"] is None
        if causal and asked["kv_offset"] == 0 and _sees_all(past, asked["q_length"], asked["kv_length"]):
            return None
        made: Tensor | None = sdpa_mask(**asked)
        return made

    ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] = mask  # goes before what is registered
    try:
        yield
    finally:
        del ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]


def _cache_of(config: Any, past: int, layers: list[tuple[Tensor, Tensor]]) -> Any:
    """A static cache that holds `past` tokens of these keys and values, (batch, heads, tokens, head dim) each."""
    keys = layers[0][0]
    cache: Any = StaticCache(config=config, max_cache_len=keys.shape[2])
    cache.early_initialization(keys.shape[0], keys.shape[1], keys.shape[3], keys.dtype, keys.device)
    cache.of, cache.past = config, past
    # the layers' lengths are views of one tensor, so that one fill resets them all
    cache.lengths = torch.full((len(layers),), past, dtype=torch.int64, device=keys.device)
    for index, layer in enumerate(cache.layers):
        layer.cumulative_length = cache.lengths[index]
        torch._dynamo.mark_static_address(layer.cumulative_length)
        layer.keys.copy_(layers[index][0])
        layer.values.copy_(layers[index][1])
    return cache
