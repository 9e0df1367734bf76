"""Qwen-Image's VAE decoder (diffusers): Wan's architecture, one latent frame."""

from diffusers import AutoencoderKLQwenImage

from harness.e2e.models._decoders import Decoder


class QwenImageVae(Decoder):
    """See `Decoder`."""

    model_class = AutoencoderKLQwenImage
    video = True


FAMILY = QwenImageVae()
