"""The image VAE decoder of the SD and FLUX families (diffusers)."""

from diffusers import AutoencoderKL

from harness.e2e.models._decoders import Decoder


class AutoencoderKl(Decoder):
    """See `Decoder`."""

    model_class = AutoencoderKL
    video = False


FAMILY = AutoencoderKl()
