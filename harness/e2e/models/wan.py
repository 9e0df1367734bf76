"""Wan 2.1 and 2.2 text-to-video transformers (diffusers)."""

from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class Wan(Family):
    """Sizes: batch, frames, height, width (pixels), text (tokens). The VAE compresses 4x in time and 8x in space."""

    library = "diffusers"
    model_class = WanTransformer3DModel

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`."""
        config: Any = model.config
        batch, frames = sizes["batch"], (sizes["frames"] - 1) // 4 + 1
        latent = (batch, config.in_channels, frames, sizes["height"] // 8, sizes["width"] // 8)
        return {
            "hidden_states": draw.activation("latent", latent),
            "timestep": torch.full((batch,), 500, dtype=torch.int64, device=draw.device),
            "encoder_hidden_states": draw.activation("text", (batch, sizes["text"], config.text_dim)),
        }


FAMILY = Wan()
