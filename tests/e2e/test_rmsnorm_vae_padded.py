"""RMSNormVAE wired up to the padded input of the causal convolutions in Wan's and Qwen-Image's decoders."""

from typing import Any

import pytest
import torch
from torch import Tensor

from candidates.rmsnorm_vae.wiring_padded import CACHED, FIRST
from harness.e2e.wirings import wiring_for
from tests.e2e.twins import twin


@pytest.mark.parametrize(
    ("name", "family", "context", "chunks"),
    [("wan2.1-vae", "wan_vae", CACHED, 3), ("qwen-image-vae", "qwen_image_vae", FIRST, 1)],
)
@torch.no_grad()
def test_what_is_written_channels_last_stays_so_from_block_to_block(
    name: str, family: str, context: str, chunks: int
) -> None:
    """bf16, where a CPU's convolutions keep the layout too: x and the cache of the chunk before."""
    wiring = wiring_for("rmsnorm_vae", family, context)
    of, model, inputs = twin(name, torch.bfloat16)
    expected = of.run(model, inputs)
    channels_last: list[bool] = []

    def last(x: Tensor) -> bool:
        return x.is_contiguous(memory_format=torch.channels_last_3d)

    def padded(**args: Any) -> Tensor:
        channels_last.append(last(args["x"]))
        assert context == FIRST or last(args["cache"])
        return wiring.native(**args).contiguous(memory_format=torch.channels_last_3d)  # type: ignore[no-any-return]

    with wiring.apply(model, padded):
        error = (of.run(model, inputs) - expected).float().square().mean().sqrt()
    assert error < 0.02 * expected.float().square().mean().sqrt()
    calls = sum(site.calls for site in wiring.sites(model))
    assert len(channels_last) == chunks * calls
    # the blocks about the attention and the one behind each upsampler are given another layout
    for chunk in range(chunks):
        of_chunk = channels_last[chunk * calls : (chunk + 1) * calls]
        other = [0, 2, 8, 12, 16] if chunk == 0 else [0, 2, 8, 12]
        assert [call for call, so in enumerate(of_chunk) if not so] == other
