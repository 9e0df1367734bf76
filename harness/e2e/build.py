"""Models as their libraries load them in bf16, with random weights that are the same bytes on every device.

`from_config(...).to(bf16)` is another model than `from_pretrained(..., torch_dtype=bf16)`: the first also turns the
modules of `_keep_in_fp32_modules` and fp32 buffers (rotary tables) into bf16. Here the model is constructed under the
default dtype, and what its class keeps in fp32 is brought back, which gives the second one bit for bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.e2e.models import Family
from harness.measure.inputs import fill_normal

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(family: Family, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device, seed: int) -> nn.Module:
    """The model of that configuration with random weights, in eval mode and without gradients.

    Norm weights are drawn about 1 and biases about 0, so that an ignored or swapped one shows; matrices keep the
    variance of their input.
    """
    with _default_dtype(dtype), device:
        model = family.build(config)
    keep = keep_fp32(model)
    for name, parameter in model.named_parameters():
        if dtype is not torch.float32 and keep & set(name.split(".")):
            parameter.data = parameter.data.float()
    randomise(model, seed)
    return model.eval().requires_grad_(False)


def load(family: Family, folder: str, device: torch.device) -> nn.Module:
    """The model of a local checkpoint, in bf16, in eval mode and without gradients."""
    return family.load(folder).to(device).eval().requires_grad_(False)


def keep_fp32(model: nn.Module) -> set[str]:
    """Names of submodules that the class keeps in fp32."""
    return set(getattr(model, "_keep_in_fp32_modules", None) or ())


@torch.no_grad()
def randomise(model: nn.Module, seed: int) -> None:
    """Draw every parameter from (seed, its name): bytes that do not depend on the device or on the order."""
    matrices = {f"{name}.weight".lstrip(".") for name, module in model.named_modules() if isinstance(module, _WEIGHTED)}
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        vector = name not in matrices and parameter.numel() == max(shape, default=1)
        if vector:
            loc, scale = (0.0, 0.02) if name.rpartition(".")[2].startswith("bias") else (1.0, 0.2)
        else:
            fan_in = math.prod(shape[1:]) if name in matrices else shape[-1]
            loc, scale = 0.0, fan_in**-0.5
        flat = torch.empty(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        fill_normal(flat, seed, name, loc, scale)
        parameter.copy_(flat.view(shape))


def sharing(model: nn.Module) -> nn.Module:
    """A copy with modules of its own on the same parameter and buffer tensors: arms share one set of weights."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
