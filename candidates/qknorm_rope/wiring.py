"""QK-norm + RoPE's call sites: q and k of each stream of attentions that norm and rotate them, one call for both.

Where a model keeps complex tables, a call takes their real and imaginary parts. Qwen-Image's are split once for all
blocks, where the model makes them; Z-Image pads its own after that, so each of its calls takes views of them, and what
a candidate needs to read those is part of its cost.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from candidates._attention.models import ATTENTIONS
from candidates._attention.streams import Pair, Stream, Turn, across_heads, joined
from candidates._blocks.unwritten import unwritten
from candidates.qknorm_rope import op
from candidates.qknorm_rope.conventions import Pairs, Rounding, Table
from candidates.qknorm_rope.wiring_native import complex_tables, torch_norm
from harness.op import Args, Impl
from harness.wiring import Described, Site, Wiring, replaced

JOINT = "joint"


def _wan(table: Pair) -> Pair:
    """cos and sin (1, S, 1, D)."""
    cos, sin = table
    return cos[0, :, 0], sin[0, :, 0]


def _as_it_is(table: Pair) -> Pair:
    return table


def _parts(table: Tensor) -> Pair:
    """cos and sin of complex (..., D / 2), views."""
    return table.real, table.imag


@dataclass(frozen=True)
class _Family:
    """How a family norms and rotates."""

    native: Impl
    pairs: Pairs
    table: Table
    rounding: Rounding
    native_calls: tuple[str, ...]
    norms: dict[str, str]
    """Classes of its norms, as `Wiring.pinned`."""
    parts: Callable[[Any], Pair] = _as_it_is
    """cos and sin (S, W) or (B, S, W) of one of the model's tables."""
    eps: str = "eps"
    """Where its norms keep theirs."""

    def arguments(self, stream: Stream, table: Pair) -> Args:
        """The op's arguments for one stream."""
        cos, sin = table
        return {
            "q": stream.q,
            "k": stream.k,
            "q_weight": stream.norm_q.weight,
            "k_weight": stream.norm_k.weight,
            "cos": cos,
            "sin": sin,
            "eps": getattr(stream.norm_q, self.eps),
            "across_heads": across_heads(stream.norm_q, stream.q),
            "pairs": str(self.pairs),
            "table": str(self.table),
            "rounding": str(self.rounding),
        }

    def tables(self, streams: tuple[Stream, ...], tables: tuple[Any, ...]) -> list[Pair]:
        """cos and sin of each stream; those of the joined tokens are cut."""
        parts = [self.parts(table) for table in tables]
        if len(parts) == len(streams):
            return parts
        lengths = [stream.q.shape[1] for stream in streams]
        ((cos, sin),) = parts
        return list(zip(cos.split(lengths, dim=-2), sin.split(lengths, dim=-2), strict=True))


_TORCH = {"torch.nn:RMSNorm.forward": "624d70ec04d54553"}
_DIFFUSERS = {"diffusers.models.normalization:RMSNorm.forward": "ab9075d036873ac9"}
_TORCH_FAMILY = partial(
    _Family, torch_norm, Pairs.INTERLEAVED, Table.REPEATED, Rounding.NORM, norms=_TORCH, native_calls=(r"rms_norm",)
)
_COMPLEX_FAMILY = partial(
    _Family, complex_tables, Pairs.INTERLEAVED, Table.HALF, Rounding.BEFORE_WEIGHT, (r"view_as_complex", r"\bpow\b"),
    _DIFFUSERS,
)  # fmt: skip
_OMNI = _Family(
    op.native, Pairs.NEOX, Table.REPEATED, Rounding.BEFORE_WEIGHT, (r"\bcat\b", r"\bpow\b"), {}, eps="variance_epsilon"
)
_FAMILIES = {
    "flux": _TORCH_FAMILY(),
    "wan": _TORCH_FAMILY(parts=_wan),
    "ltx_video": _TORCH_FAMILY(),
    "qwen_image": _COMPLEX_FAMILY(),
    "z_image": _COMPLEX_FAMILY(parts=_parts),
    "qwen3_omni_thinker": _OMNI,
    "qwen3_omni_talker": _OMNI,
}
_TWO_STREAMS = {"flux": "transformer_blocks.", "qwen_image": "transformer_blocks."}
"""Prefix of the paths of attentions that join text and image, by family."""


def _each(implementation: Impl, family: _Family) -> Turn:
    """One call for each stream, joined afterwards."""

    def turn(streams: tuple[Stream, ...], tables: tuple[Any, ...]) -> Pair:
        given = zip(streams, family.tables(streams, tables), strict=True)
        return joined([implementation(**family.arguments(stream, table)) for stream, table in given])

    return turn


def _whole(implementation: Impl, family: _Family) -> Turn:
    """One call of context `joint` for the two streams of an attention."""

    def turn(streams: tuple[Stream, ...], tables: tuple[Any, ...]) -> Pair:
        text, image = (
            family.arguments(stream, table)
            for stream, table in zip(streams, family.tables(streams, tables), strict=True)
        )
        prefixed = {f"text_{name}": text[name] for name in ("q", "k", "q_weight", "k_weight", "cos", "sin")}
        pair: Pair = implementation(**image, **prefixed)
        return pair

    return turn


def nothing(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> Pair:  # fmt: skip
    """q and k themselves."""
    return q, k


def _nothing_joined(q: Tensor, k: Tensor, text_q: Tensor, text_k: Tensor, **more: Any) -> Pair:
    """Text and image behind each other, unwritten."""
    tokens = text_q.shape[1] + q.shape[1]
    of_q, of_k = ((one.shape[0], tokens, *one.shape[2:]) for one in (q, k))
    return unwritten(text_q, q, shape=of_q), unwritten(text_k, k, shape=of_k)


def described(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str, **text: Tensor,
) -> Described:  # fmt: skip
    """As the manifest names it; of the joint context, the image's."""
    return dict(zip("BSHD", q.shape, strict=True)), {
        "eps": eps,
        "queries_per_kv": q.shape[2] // k.shape[2],
        "across_heads": across_heads,
        "pairs": pairs,
        "rotary_dim": cos.shape[-1] * (2 if table == Table.HALF else 1),
        "table": table,
        "table_dtype": str(cos.dtype).removeprefix("torch."),
        "per_batch": cos.ndim == 3,
        "rounding": rounding,
    }


@contextmanager
def _tables_split_once(model: nn.Module) -> Iterator[None]:
    """Qwen-Image's tables as (cos, sin) where the model makes them, instead of once in every block."""
    tables_of = model.get_submodule("pos_embed").forward

    def forward(*args: Any, **kwargs: Any) -> tuple[Pair, ...]:
        return tuple((table.real.contiguous(), table.imag.contiguous()) for table in tables_of(*args, **kwargs))

    with replaced(model.get_submodule("pos_embed"), "forward", forward):
        yield


def _wiring(name: str, context: str | None = None) -> Wiring:
    attentions, family = ATTENTIONS[name], _FAMILIES[name]
    prefix = _TWO_STREAMS.get(name)

    def sites(model: nn.Module) -> tuple[Site, ...]:
        """Every stream of every attention that rotates; in a context every attention that joins two."""
        found = []
        for path in attentions.of(model):
            two = prefix is not None and path.startswith(prefix)
            found.append(Site(path, 2 if two and context is None else 1))
        return tuple(found)

    @contextmanager
    def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
        """Put processors (for Qwen3-Omni, forwards) on the attentions."""
        turn = _each(implementation, family) if context is None else _whole(implementation, family)
        with ExitStack() as stack:
            stack.enter_context(attentions.turned(model, turn))
            if name == "qwen_image":
                stack.enter_context(_tables_split_once(model))
            yield

    return Wiring(
        op=op.OP.id,
        family=name,
        native=family.native if context is None else op.OP.context(context).compose(family.native),
        nothing=nothing if context is None else _nothing_joined,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=family.native_calls,
        pinned={**attentions.pinned, **family.norms},
        context=context,
    )


WIRINGS = (*(_wiring(name) for name in _FAMILIES), _wiring("qwen_image", JOINT))
