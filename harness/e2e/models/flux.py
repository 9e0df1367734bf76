"""FLUX.1's transformer (diffusers)."""

from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class Flux(Family):
    """Sizes: batch, height, width (pixels), text (tokens). One token is 16x16 pixels."""

    library = "diffusers"
    model_class = FluxTransformer2DModel

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`. Image positions are (0, row, column), text positions zero, as in the pipeline."""
        config: Any = model.config
        batch, height, width = sizes["batch"], sizes["height"] // 16, sizes["width"] // 16
        # float32, as the pipeline's torch.arange and zeros give them under any model dtype but bf16's own
        rows = torch.arange(height, dtype=torch.float32, device=draw.device)
        columns = torch.arange(width, dtype=torch.float32, device=draw.device)
        positions = torch.cartesian_prod(rows.new_zeros(1), rows, columns)
        guidance = {"guidance": torch.full((batch,), 3.5, device=draw.device, dtype=torch.float32)}
        return {
            "hidden_states": draw.activation("latent", (batch, height * width, config.in_channels)),
            "encoder_hidden_states": draw.activation("text", (batch, sizes["text"], config.joint_attention_dim)),
            "pooled_projections": draw.activation("pooled", (batch, config.pooled_projection_dim)),
            "timestep": torch.full((batch,), 0.5, dtype=draw.dtype, device=draw.device),
            "img_ids": positions,
            "txt_ids": positions.new_zeros(sizes["text"], 3),
            **(guidance if config.guidance_embeds else {}),
        }


FAMILY = Flux()
