"""Z-Image's transformer (diffusers)."""

from typing import Any

import torch
from diffusers import ZImageTransformer2DModel
from torch import Tensor, nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class ZImage(Family):
    """Sizes: batch, height, width (pixels), text (tokens). One token is 16x16 pixels."""

    library = "diffusers"
    model_class = ZImageTransformer2DModel

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`: one latent and one caption per image, in lists."""
        config: Any = model.config
        latent = (config.in_channels, 1, sizes["height"] // 8, sizes["width"] // 8)
        images = range(sizes["batch"])
        return {
            "x": [draw.activation(f"latent {image}", latent) for image in images],
            "t": torch.full((sizes["batch"],), 0.5, dtype=draw.dtype, device=draw.device),
            "cap_feats": [draw.activation(f"text {image}", (sizes["text"], config.cap_feat_dim)) for image in images],
        }

    def run(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """See `Family.run`."""
        return torch.stack(model(**inputs, return_dict=False)[0])


FAMILY = ZImage()
