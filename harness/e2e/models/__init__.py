"""The models that candidates are wired into: one module per family, each with a `FAMILY`.

Everything is the library's own model code; a family only says how to construct it, what it is fed, what one run of it
is, and which of its modules are compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from harness.errors import UserError
from harness.op import Draw

Sizes = Mapping[str, int]
Inputs = dict[str, Any]


class Family(ABC):
    """Models of one class."""

    library: ClassVar[str]
    """Distribution whose model code it is."""

    model_class: ClassVar[Any]

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """Construct the model; default dtype and device are the caller's."""
        model: nn.Module = self.model_class(**config)
        return model

    @abstractmethod
    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """What one run is fed, at these sizes."""

    def share(self, inputs: Inputs, rank: int, ranks: int) -> Inputs:
        """What one of the ranks that a model is split over is fed of these inputs: all, unless the family cuts them."""
        return inputs

    def run(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """One run: a denoising step, a decode."""
        output: Tensor = model(**inputs, return_dict=False)[0]
        return output

    def attention_limits(self, inputs: Inputs) -> str:
        """What keeps a run of these inputs from the attention that torch would choose; empty where nothing does."""
        return ""

    def in_fp32(self, inputs: Inputs) -> Inputs:
        """The same inputs in fp32, for the reference of the quality check."""
        return {name: _in_fp32(value) for name, value in inputs.items()}

    def compiled(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Modules whose forward is compiled: by default the repeated blocks, as diffusers and vllm-omni compile."""
        names = set(getattr(model, "_repeated_blocks", ()))
        return tuple(module for module in model.modules() if type(module).__name__ in names)

    def load(self, folder: str) -> nn.Module:
        """The model of a local checkpoint in bf16, as its library loads it; nothing is fetched."""
        model: nn.Module = self.model_class.from_pretrained(folder, torch_dtype=torch.bfloat16, local_files_only=True)
        return model


def _in_fp32(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return [_in_fp32(item) for item in value] if isinstance(value, list) else value


def names() -> tuple[str, ...]:
    """The families there are."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")))


def family(name: str) -> Family:
    """The family of that name. Raises UserError for one there is not, or whose library is not installed."""
    if name not in names():
        raise UserError(f"there is no model family `{name}`; choose one of {', '.join(names())}.")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"the model family `{name}` needs {error.name}; install the extra: pip install -e '.[e2e]'."
        ) from error
    found: Family = module.FAMILY
    return found
