"""HunyuanVideo's VAE decoder (diffusers)."""

from diffusers import AutoencoderKLHunyuanVideo

from harness.e2e.models._decoders import Decoder


class HunyuanVideoVae(Decoder):
    """See `Decoder`."""

    model_class = AutoencoderKLHunyuanVideo
    video = True


FAMILY = HunyuanVideoVae()
