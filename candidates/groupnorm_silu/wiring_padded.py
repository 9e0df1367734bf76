"""GroupNorm+SiLU up to the padded input of the causal convolution behind it, in HunyuanVideo's VAE decoder.

What is written channels-last stays so through the convolutions, which copy to that layout where they are given another.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from candidates._blocks.pieces import Forward, bound
from candidates._blocks.unwritten import unwritten
from candidates.groupnorm_silu.op import CAUSAL_FRAMES, OP, PAD, PADDING
from harness.op import Impl
from harness.wiring import Described, Site, Wiring

_BLOCK = "HunyuanVideoResnetBlockCausal3D"


class _Step:
    """Norm, SiLU and causal convolution, the implementation up to the convolution's input."""

    def __init__(self, implementation: Impl) -> None:
        self.implementation = implementation

    def __call__(self, norm: Any, conv: Any, x: Tensor) -> Tensor:
        """x (N, C, T, H, W)."""
        assert conv.time_causal_padding == PADDING, conv.time_causal_padding
        assert conv.pad_mode == "replicate", conv.pad_mode
        padded = self.implementation(x=x, weight=norm.weight, bias=norm.bias, groups=norm.num_groups, eps=norm.eps)
        return F.conv3d(padded, conv.conv.weight, conv.conv.bias)


def _block_with(step: _Step, *, contiguous: bool) -> Forward:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        x = hidden_states.contiguous() if contiguous else hidden_states
        y = step(self.norm2, self.conv2, step(self.norm1, self.conv1, x))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))

    return forward


def _decoder_with(step: _Step) -> Forward:
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        x = self.mid_block(self.conv_in(hidden_states))
        for block in self.up_blocks:
            x = block(x)
        return step(self.conv_norm_out, self.conv_out, x)

    return forward


def _blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The decoder's residual blocks by path, told apart by their class: a model's library is imported by who builds."""
    decoder = model.get_submodule("decoder").named_modules(prefix="decoder")
    return {path: block for path, block in decoder if type(block).__name__ == _BLOCK}


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every GroupNorm of the decoder that a SiLU follows: all but the attention's."""
    blocks = [Site(f"{path}.{norm}") for path in _blocks(model) for norm in ("norm1", "norm2")]
    return (*blocks, Site("decoder.conv_norm_out"))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Bind the forwards of the residual blocks and of the decoder."""
    step = _Step(implementation)
    # The model makes every block's input contiguous, which only that behind the attention is not already. Without the
    # others what a candidate writes channels-last stays so from block to block.
    forwards = {contiguous: _block_with(step, contiguous=contiguous) for contiguous in (False, True)}
    blocks = [(module, forwards[".mid_block." in path]) for path, module in _blocks(model).items()]
    with bound([*blocks, (model.get_submodule("decoder"), _decoder_with(step))]):
        yield


def nothing(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
    """The convolution's input, unwritten, in the layout that it computes in."""
    n, c, t, h, w = x.shape
    return unwritten(x, shape=(n, c, t + CAUSAL_FRAMES, h + 2, w + 2), channels_last=True)


def wiring(described: Callable[..., Described], pinned: dict[str, str]) -> Wiring:
    """The wiring of the op together with the padding behind it."""
    return Wiring(
        op=OP.id,
        family="hunyuan_video_vae",
        native=OP.context(PAD).compose(OP.native),
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"group_norm",),
        pinned=pinned,
        context=PAD,
    )
