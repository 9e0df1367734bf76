"""Rotary embedding's call sites: q and k of self-attention in diffusion transformers and in Qwen3-Omni's text models.

What each family calls is one of the op's forms; the norms before it stay the model's own modules.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from candidates._attention.models import ATTENTIONS
from candidates._attention.streams import Pair, Stream, joined, normed
from candidates.rope_wan.op import OP, native
from candidates.rope_wan.tables import Form, Pairs, Positions, Width
from candidates.rope_wan.wiring_vllm_omni import wiring as vllm_omni_wiring
from harness.op import Args, Impl
from harness.schema.case import Dtype
from harness.wiring import Described, Site, Wiring


def _wan(table: Pair) -> Args:
    """cos and sin (1, S, 1, D)."""
    cos, sin = (y[0, :, 0] for y in table)
    return {"cos": cos, "sin": sin, "form": str(Form.PAIR), "pairs": str(Pairs.INTERLEAVED), "width": str(Width.FULL)}


def _real(table: Pair, pairs: Pairs) -> Args:
    """cos and sin (S, D) or (B, S, D)."""
    cos, sin = table
    return {"cos": cos, "sin": sin, "form": str(Form.ROTATE_HALF), "pairs": str(pairs), "width": str(Width.FULL)}


def _complex(table: Tensor) -> Args:
    """cos + i sin, (S, D / 2) or (B, S, D / 2)."""
    return {
        "cos": table, "sin": None, "form": str(Form.COMPLEX), "pairs": str(Pairs.INTERLEAVED), "width": str(Width.HALF)
    }  # fmt: skip


@dataclass(frozen=True)
class _Family:
    """How a family rotates."""

    arguments: Callable[[Any], Args]
    """The op's arguments beside x from one of the model's tables."""
    native_call: str
    """See `Wiring.native_calls`."""
    tables_per_stream: bool = False
    """Whether streams are rotated each with its table before they are joined."""


_FAMILIES = {
    "wan": _Family(_wan, r"empty_like"),
    "flux": _Family(partial(_real, pairs=Pairs.INTERLEAVED), r"unbind"),
    "qwen_image": _Family(_complex, r"view_as_complex", tables_per_stream=True),
    "z_image": _Family(_complex, r"view_as_complex"),
    "ltx_video": _Family(partial(_real, pairs=Pairs.INTERLEAVED), r"unbind"),
    "qwen3_omni_thinker": _Family(partial(_real, pairs=Pairs.HALVES), r"neg"),
    "qwen3_omni_talker": _Family(partial(_real, pairs=Pairs.HALVES), r"neg"),
}


class _Rotating:
    """A turn: the model's norms, then the implementation on q and on k."""

    def __init__(self, implementation: Impl, family: _Family) -> None:
        self.implementation = implementation
        self.arguments = family.arguments

    def __call__(self, streams: tuple[Stream, ...], tables: tuple[Any, ...]) -> Pair:
        pairs = [(normed(stream.norm_q, stream.q), normed(stream.norm_k, stream.k)) for stream in streams]
        if len(tables) == 1:
            pairs = [joined(pairs)]
        return joined([self._rotated(pair, table) for pair, table in zip(pairs, tables, strict=True)])

    def _rotated(self, pair: Pair, table: Any) -> Pair:
        q, k = pair
        arguments = self.arguments(table)
        return self.implementation(x=q, **arguments), self.implementation(x=k, **arguments)


def nothing(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """x itself."""
    return x


def described(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Described:
    """As the manifest names it; a call knows nothing of the other one's heads."""
    positions = {2: Positions.SHARED, 3: Positions.PER_BATCH, 4: Positions.PER_HEAD}[cos.ndim]
    table_dtype = torch.view_as_real(cos).dtype if cos.is_complex() else cos.dtype
    return dict(zip("BSHD", x.shape, strict=True)), {
        "form": form,
        "pairs": pairs,
        "width": width,
        "table_dtype": str(Dtype(str(table_dtype).removeprefix("torch."))),
        "positions": str(positions),
        "rotary_dim": cos.shape[-1] * (2 if width == Width.HALF else 1),
        "heads_per_kv": 1,
    }


def _wiring(name: str, family: _Family) -> Wiring:
    attentions = ATTENTIONS[name]

    def sites(model: nn.Module) -> tuple[Site, ...]:
        """q and k of every attention that rotates."""
        return tuple(Site(path, 4 if family.tables_per_stream else 2) for path in attentions.of(model))

    @contextmanager
    def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
        """Put processors (for Qwen3-Omni, forwards) on the attentions."""
        with attentions.turned(model, _Rotating(implementation, family)):
            yield

    return Wiring(
        op=OP.id,
        family=name,
        native=native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(family.native_call,),
        pinned=attentions.pinned,
    )


WIRINGS = (*(_wiring(name, family) for name, family in _FAMILIES.items()), vllm_omni_wiring(nothing, described))
