"""vllm-omni's `RotaryEmbeddingWan` and `RotaryEmbedding` layers, as their `forward_native` rotates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from candidates._vllm_omni.layers import FAMILY, Forward, apply_to, sites_of, source
from candidates.rope_wan.op import OP
from candidates.rope_wan.tables import Form, Pairs, Width
from harness.op import Impl
from harness.wiring import Described, Site, Wiring

WAN, PLAIN = "rope.RotaryEmbeddingWan", "rope.RotaryEmbedding"


def _wan(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """x (B, S, H, D); cos and sin (B, S, 1, D / 2), one batch of them for all where B is 1."""
        tables = {name: y[0, :, 0] if y.shape[0] == 1 else y[:, :, 0] for name, y in (("cos", cos), ("sin", sin))}
        return implementation(x=x, **tables, form=str(Form.PAIR), pairs=str(Pairs.INTERLEAVED), width=str(Width.HALF))

    return forward


def _plain(implementation: Impl) -> Forward:
    def forward(self: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        """x (B, S, H, D) or (S, H, D); cos and sin (S, D or D / 2) or the same for each of a batch, in x's dtype."""
        if not x.dtype == cos.dtype == sin.dtype:
            return self.forward_native(x, cos, sin)  # which returns the tables' dtype
        cos, sin = self._prepare_half_head_dim_cos_sin(cos, sin)
        pairs = Pairs.INTERLEAVED if self.interleaved else Pairs.HALVES
        y: Tensor = implementation(
            x=x.unsqueeze(0) if x.ndim == 3 else x,
            cos=cos,
            sin=sin,
            form=str(Form.ROTATE_HALF),
            pairs=str(pairs),
            width=str(Width.HALF),
        )
        return y.squeeze(0) if x.ndim == 3 else y

    return forward


_SITES = (sites_of(WAN), sites_of(PLAIN))
_APPLY = (apply_to(WAN, _wan), apply_to(PLAIN, _plain))


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every layer of both classes."""
    return tuple(site for of in _SITES for site in of(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Set what every layer of both classes calls."""
    wan, plain = (of(model, implementation) for of in _APPLY)
    with wan, plain:
        yield


def wiring(nothing: Impl, described: Callable[..., Described]) -> Wiring:
    """As the op's other wirings leave it out and describe its calls."""
    return Wiring(
        op=OP.id,
        family=FAMILY,
        native=OP.native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"stack",),
        pinned={source(WAN): "4911ee704a2650fa", source(PLAIN): "4761b547ef2e4cf6"},
    )
