"""LTX-Video's transformer (diffusers)."""

from typing import Any

import torch
from diffusers import LTXVideoTransformer3DModel
from torch import nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class LtxVideo(Family):
    """Sizes: batch, frames, height, width (pixels), text (tokens). The VAE compresses 8x in time and 32x in space."""

    library = "diffusers"
    model_class = LTXVideoTransformer3DModel

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`."""
        config: Any = model.config
        batch, frames = sizes["batch"], (sizes["frames"] - 1) // 8 + 1
        height, width = sizes["height"] // 32, sizes["width"] // 32
        return {
            "hidden_states": draw.activation("latent", (batch, frames * height * width, config.in_channels)),
            "encoder_hidden_states": draw.activation("text", (batch, sizes["text"], config.caption_channels)),
            "timestep": torch.full((batch,), 500, dtype=torch.int64, device=draw.device),
            "encoder_attention_mask": torch.ones(batch, sizes["text"], dtype=draw.dtype, device=draw.device),
            "num_frames": frames,
            "height": height,
            "width": width,
            # latent frames per second of 25 fps video, and pixels per token: the pipeline's scale
            "rope_interpolation_scale": (8 / 25, 32, 32),
        }


FAMILY = LtxVideo()
