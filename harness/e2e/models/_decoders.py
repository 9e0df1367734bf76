"""VAE decoders: one run is one decode, and the decoder is compiled as a whole."""

from typing import Any, ClassVar

from torch import Tensor, nn

from harness.e2e.models import Family, Inputs, Sizes
from harness.op import Draw


class Decoder(Family):
    """Sizes: batch, height, width and, for video, frames of the latent."""

    library = "diffusers"
    video: ClassVar[bool]

    def inputs(self, model: nn.Module, sizes: Sizes, draw: Draw) -> Inputs:
        """See `Family.inputs`."""
        config: Any = model.config
        channels = getattr(config, "latent_channels", None) or config.z_dim
        frames = (sizes["frames"],) if self.video else ()
        return {"z": draw.activation("latent", (sizes["batch"], channels, *frames, sizes["height"], sizes["width"]))}

    def run(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """See `Family.run`."""
        output: Tensor = model.decode(inputs["z"], return_dict=False)[0]  # type: ignore[operator]
        return output

    def compiled(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """See `Family.compiled`: the decoder."""
        return (model.decoder,)  # type: ignore[return-value]
