"""Device memory for the barriers of one-launch kernels: words that every launch leaves fit for the next.

A word serves launches that run one after another; two that run at once must not share one. So launches on one stream
share that stream's words (a stream runs its launches in order), and a launch captured into a CUDA graph gets words of
its own for good, since its graph may be replayed on any stream, beside anything; CUDA itself runs the replays of one
graph in order. A new stream that gets the handle of a destroyed one gets its words too.
"""

import threading

import torch
from torch import Tensor

WORDS = 1 << 20
"""Words per device: room for 32768 captured launches at 32 words each."""
WORDS_PER_STREAM = 1024


class WordStore:
    """Zeroed int32 words on one device, handed out and never taken back."""

    def __init__(self, device: torch.device, size: int = WORDS) -> None:
        self._words = torch.zeros(size, dtype=torch.int32, device=device)
        self._taken = 0
        self._of_stream: dict[int, Tensor] = {}
        self._lock = threading.Lock()

    def own(self, count: int) -> Tensor | None:
        """`count` words that nobody else has; None when too few are left."""
        with self._lock:
            if self._taken + count > len(self._words):
                return None
            self._taken += count
            return self._words[self._taken - count : self._taken]

    def of_stream(self, stream: int, count: int) -> Tensor | None:
        """`count` words that launches on the stream of that handle share."""
        if count > WORDS_PER_STREAM:
            return None
        if stream not in self._of_stream:
            words = self.own(WORDS_PER_STREAM)
            if words is None:
                return None
            self._of_stream[stream] = words
        return self._of_stream[stream][:count]


_stores: dict[torch.device, WordStore] = {}


def barrier_words(device: torch.device, count: int) -> Tensor | None:
    """Words for one launch on the device's current stream.

    None when there are none left, or when a graph is being captured and there was no call before that could zero them.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    capturing = torch.cuda.is_current_stream_capturing()
    store = _stores.get(device)
    if store is None:
        if capturing:
            return None
        store = WordStore(device)
        torch.cuda.synchronize(device)  # other streams may use them from now on
        store = _stores.setdefault(device, store)
    if capturing:
        return store.own(count)
    return store.of_stream(torch.cuda.current_stream(device).cuda_stream, count)
