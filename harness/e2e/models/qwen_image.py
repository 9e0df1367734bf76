"""Qwen-Image's transformer (diffusers)."""

from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from torch import nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class QwenImage(Family):
    """Sizes: batch, height, width (pixels), text (tokens). One token is 16x16 pixels."""

    library = "diffusers"
    model_class = QwenImageTransformer2DModel

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`."""
        config: Any = model.config
        batch, height, width = sizes["batch"], sizes["height"] // 16, sizes["width"] // 16
        return {
            "hidden_states": draw.activation("latent", (batch, height * width, config.in_channels)),
            "encoder_hidden_states": draw.activation("text", (batch, sizes["text"], config.joint_attention_dim)),
            "timestep": torch.full((batch,), 0.5, dtype=draw.dtype, device=draw.device),
            "img_shapes": [[(1, height, width)]] * batch,
        }


FAMILY = QwenImage()
