"""Wan's VAE decoder (diffusers): one latent frame at a time with a cache of the causal convolutions."""

from diffusers import AutoencoderKLWan

from harness.e2e.models._decoders import Decoder


class WanVae(Decoder):
    """See `Decoder`."""

    model_class = AutoencoderKLWan
    video = True


FAMILY = WanVae()
