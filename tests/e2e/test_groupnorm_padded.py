"""GroupNorm+SiLU wired up to the padded input of HunyuanVideo's causal convolutions."""

import torch
from torch import Tensor

from candidates.groupnorm_silu.op import PAD
from candidates.groupnorm_silu.rewrite import channels_last_pad
from harness.e2e.wirings import wirings_of
from tests.e2e.twins import twin


@torch.no_grad()
def test_what_is_written_channels_last_stays_so_from_block_to_block() -> None:
    """bf16, where a CPU's convolutions keep the layout too."""
    (wiring,) = (one for one in wirings_of("groupnorm_silu") if one.context == PAD)
    of, model, inputs = twin("hunyuanvideo-vae", torch.bfloat16)
    expected = of.run(model, inputs)
    channels_last: list[bool] = []

    def padded(x: Tensor, **more: object) -> Tensor:
        channels_last.append(x.is_contiguous(memory_format=torch.channels_last_3d))
        return channels_last_pad.run(x=x, **more)  # type: ignore[no-any-return]

    with wiring.apply(model, padded):
        error = (of.run(model, inputs) - expected).float().square().mean().sqrt()
    assert error < 0.02 * expected.float().square().mean().sqrt()
    # the blocks about the attention make their input contiguous as the model does; the upsamplers' convolutions, which
    # nothing is wired to, give the others
    assert [call for call, last in enumerate(channels_last) if not last] == [0, 2, 8, 12, 16]
    assert len(channels_last) == sum(site.calls for site in wiring.sites(model))
