"""Qwen3-Omni's thinker split over ranks by heads and by the experts' widths (transformers).

It is built whole on every rank, and cut by the wiring (`Wiring.shard`). All ranks are fed the same tokens.
"""

from harness.e2e.models import Inputs
from harness.e2e.models._text import _cache_of
from harness.e2e.models.qwen3_omni_thinker import Qwen3OmniThinker


class Qwen3OmniThinkerTP(Qwen3OmniThinker):
    """See `Text`."""

    def share(self, inputs: Inputs, rank: int, ranks: int) -> Inputs:
        """See `Family.share`: the keys and values of this rank's heads."""
        if (cache := inputs.get("past_key_values")) is None:
            return inputs
        layers = [(layer.keys.chunk(ranks, 1)[rank], layer.values.chunk(ranks, 1)[rank]) for layer in cache.layers]
        return inputs | {"past_key_values": _cache_of(cache.of, cache.past, layers)}


FAMILY = Qwen3OmniThinkerTP()
