"""The RMSNorm modules that models have, told apart by their class, as calls of the op."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE, variant
from harness.op import Args, Impl
from harness.wiring import Described

_OMNI = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe."


@dataclass(frozen=True)
class _Class:
    """A class of norms: the name of its eps, and where it rounds when it has a weight."""

    eps: str
    rounding: str


# by name: a model's library is imported by those who build the model
_CLASSES = {
    "torch.nn.modules.normalization.RMSNorm": _Class("eps", ONCE),
    "diffusers.models.normalization.RMSNorm": _Class("eps", BEFORE_WEIGHT),
    f"{_OMNI}Qwen3OmniMoeThinkerTextRMSNorm": _Class("variance_epsilon", BEFORE_WEIGHT),
    f"{_OMNI}Qwen3OmniMoeTextRMSNorm": _Class("variance_epsilon", BEFORE_WEIGHT),
}
_DIMS = {2: ("T", "D"), 3: ("B", "S", "D"), 4: ("B", "S", "H", "D")}


def _class_of(module: nn.Module) -> _Class | None:
    kind = type(module)
    return _CLASSES.get(f"{kind.__module__}.{kind.__qualname__}")


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    """The model's RMSNorms by path; one with a bias is another op, and not among them."""
    return {
        name: module
        for name, module in model.named_modules()
        if _class_of(module) is not None and getattr(module, "bias", None) is None
    }


@dataclass(frozen=True)
class Formula:
    """What a norm computes, beside its weight."""

    eps: float | None
    """None is torch's default: that of the dtype it computes in."""
    rounding: str

    def arguments(self, x: Tensor, weight: Tensor | None) -> Args:
        """The op's arguments for one call on x (..., D)."""
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps if self.eps is None else self.eps
        return {"x": x, "weight": weight, "eps": eps, **variant(self.rounding)}


def formula_of(norm: nn.Module) -> Formula:
    """The formula of one of `norms_of`."""
    of = _class_of(norm)
    assert of is not None, type(norm)
    return Formula(getattr(norm, of.eps), ONCE if norm.weight is None else of.rounding)


class WiredRMSNorm(nn.Module):
    """Stands in a norm's place on the norm's own weight."""

    def __init__(self, norm: nn.Module, implementation: Impl) -> None:
        super().__init__()
        weight: Any = norm.weight
        self.weight: Tensor | None = weight
        self.formula = formula_of(norm)
        self.implementation = implementation

    def forward(self, x: Tensor) -> Any:
        """x (..., D)."""
        return self.implementation(**self.formula.arguments(x, self.weight))


def described(x: Tensor, weight: Tensor | None, eps: float, rounding: str = ONCE) -> Described:
    """As the manifest names it."""
    dims = dict(zip(_DIMS[x.ndim], x.shape, strict=True))
    return dims, {"eps": eps, "rounding": rounding, "weight": weight is not None}
