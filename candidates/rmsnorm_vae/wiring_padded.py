"""RMSNormVAE up to the padded input of the causal convolution that follows it, in residual blocks and in the head.

These convolutions read two frames of the chunk before, their cache; the last two frames of one's padded input, without
its border, are the cache of the next chunk. A cache is the convolution's alone, so the zero frames in front of the
first chunk may stand in it, where the model leaves them out and pads them again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from candidates._blocks.pieces import Forward, bound
from candidates._blocks.unwritten import unwritten
from candidates.rmsnorm_vae.op import CACHED_FRAMES, OP
from candidates.rmsnorm_vae.wiring_norms import arguments, described, is_norm
from harness.op import Impl
from harness.wiring import Site, Wiring

CACHED, FIRST = "silu_cache_pad", "silu_pad"
_PADDING = (1, 1, 1, 1, CACHED_FRAMES, 0)
_cached_native = OP.context(CACHED).compose(OP.native)


class _Step:
    """Norm, SiLU and causal convolution of one chunk, the implementation up to the convolution's input."""

    def __init__(self, implementation: Impl, context: str) -> None:
        self.implementation = implementation
        self.context = context

    def _padded(self, norm: nn.Module, x: Tensor, cache: Tensor | None) -> Any:
        given = arguments(norm, x)
        if self.context == CACHED:
            n, c, _, h, w = x.shape
            if cache is None:  # channels-last, as the cache of every later chunk is
                cache = x.new_zeros(n, CACHED_FRAMES, h, w, c).movedim(-1, 1)
            return self.implementation(**given, cache=cache)
        return self.implementation(**given) if cache is None else _cached_native(**given, cache=cache)

    def __call__(self, norm: nn.Module, conv: Any, x: Tensor, caches: list[Any], position: list[int]) -> Tensor:
        """x (N, C, T, H, W); takes and leaves the convolution's cache and moves on to the next one's."""
        assert conv._padding == _PADDING, conv._padding
        padded = self._padded(norm, x, caches[position[0]])
        caches[position[0]] = padded[:, :, -CACHED_FRAMES:, 1:-1, 1:-1].clone()
        position[0] += 1
        return F.conv3d(padded, conv.weight, conv.bias)


def _first_convolution(conv: nn.Module, x: Tensor, caches: list[Any], position: list[int]) -> Tensor:
    """The convolution of the latent as the decoder calls it, with a cache of up to two frames."""
    cache = caches[position[0]]
    kept = x[:, :, -CACHED_FRAMES:].clone()
    if kept.shape[2] < CACHED_FRAMES and cache is not None:
        kept = torch.cat([cache[:, :, -1:], kept], dim=2)
    y: Tensor = conv(x, cache)
    caches[position[0]] = kept
    position[0] += 1
    return y


def _block_with(step: _Step) -> Forward:
    def forward(self: Any, x: Tensor, feat_cache: list[Any], feat_idx: list[int]) -> Tensor:
        shortcut: Tensor = self.conv_shortcut(x)
        x = step(self.norm1, self.conv1, x, feat_cache, feat_idx)
        return step(self.norm2, self.conv2, x, feat_cache, feat_idx) + shortcut

    return forward


def _decoder_with(step: _Step) -> Forward:
    def forward(self: Any, x: Tensor, feat_cache: list[Any], feat_idx: list[int], **first: bool) -> Tensor:
        x = _first_convolution(self.conv_in, x, feat_cache, feat_idx)
        x = self.mid_block(x, feat_cache=feat_cache, feat_idx=feat_idx)
        for block in self.up_blocks:
            x = block(x, feat_cache=feat_cache, feat_idx=feat_idx, **first)
        return step(self.norm_out, self.conv_out, x, feat_cache, feat_idx)

    return forward


def _blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The decoder's residual blocks by path."""
    decoder = model.get_submodule("decoder").named_modules(prefix="decoder")
    return {path: block for path, block in decoder if is_norm(getattr(block, "norm2", None))}


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every norm of the decoder but the attention's, which no convolution with a cache follows."""
    blocks = [Site(f"{path}.{norm}") for path in _blocks(model) for norm in ("norm1", "norm2")]
    return (*blocks, Site("decoder.norm_out"))


def _apply(context: str) -> Any:
    @contextmanager
    def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
        """Bind the forwards of the residual blocks and of the decoder."""
        step = _Step(implementation, context)
        block, decoder = _block_with(step), _decoder_with(step)
        blocks = [(module, block) for module in _blocks(model).values()]
        with bound([*blocks, (model.get_submodule("decoder"), decoder)]):
            yield

    return apply


def _nothing(
    x: Tensor, gamma: Tensor, bias: Tensor | None, eps: float, upcast: bool, cache: Tensor | None = None
) -> Tensor:
    """The convolution's input, unwritten, in the layout that it computes in."""
    n, c, t, h, w = x.shape
    return unwritten(x, shape=(n, c, t + CACHED_FRAMES, h + 2, w + 2), channels_last=True)


def wiring(family: str, context: str, pinned: dict[str, str]) -> Wiring:
    """The wiring of a VAE: with caches where chunks follow each other, for the first chunk where there is one alone."""
    return Wiring(
        op=OP.id,
        family=family,
        native=OP.context(context).compose(OP.native),
        nothing=_nothing,
        sites=sites,
        apply=_apply(context),
        described=described,
        native_calls=(r"functional\.normalize",),
        pinned=pinned,
        context=context,
    )
