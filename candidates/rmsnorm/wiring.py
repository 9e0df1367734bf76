"""RMSNorm's call sites: the norms of diffusion transformers that are `torch.nn.RMSNorm` modules."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.op import Impl
from harness.wiring import Described, Site, Wiring, replaced


def native(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `torch.nn.RMSNorm` computes it."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def nothing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x itself."""
    return x


class WiredRMSNorm(nn.Module):
    """Stands in a norm's place on the norm's own weight."""

    def __init__(self, norm: nn.RMSNorm, implementation: Impl) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.eps
        self.implementation = implementation

    def forward(self, x: Tensor) -> Any:
        """x (..., D)."""
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return self.implementation(x=x, weight=self.weight, eps=eps)


def _norms(model: nn.Module) -> dict[str, nn.RMSNorm]:
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.RMSNorm and module.weight is not None
    }


def sites(model: nn.Module) -> tuple[Site, ...]:
    """Every `torch.nn.RMSNorm` with a weight."""
    return tuple(Site(name) for name in _norms(model))


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Put a module in each norm's place."""
    with ExitStack() as stack:
        for name, norm in _norms(model).items():
            parent, _, child = name.rpartition(".")
            stack.enter_context(replaced(model.get_submodule(parent), child, WiredRMSNorm(norm, implementation)))
        yield


def described(x: Tensor, weight: Tensor, eps: float) -> Described:
    """As the manifest names it."""
    names = {2: ("T", "D"), 3: ("B", "S", "D"), 4: ("B", "S", "H", "D")}[x.ndim]
    return dict(zip(names, x.shape, strict=True)), {"eps": eps}


WIRINGS = tuple(
    Wiring(
        op="rmsnorm",
        family=family,
        native=native,
        nothing=nothing,
        sites=sites,
        apply=apply,
        described=described,
        native_calls=(r"rms_norm",),
        pinned={},
    )
    for family in ("wan", "flux", "ltx_video")
)
