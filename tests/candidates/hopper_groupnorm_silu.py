"""Run by test_groupnorm_silu.py: compiles the kernels of some real shapes for sm_90."""

from collections.abc import Callable

import torch

from candidates.groupnorm_silu import launch, padded
from tests.candidates.hopper import print_facts


def _call(
    shape: tuple[int, ...], memory_format: torch.memory_format, run: Callable[..., object] = launch.groupnorm_silu
) -> object:
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta").to(memory_format=memory_format)
    weight = torch.empty(shape[1], dtype=torch.bfloat16, device="meta")
    return run(x, weight, weight, 32, 1e-6)


if __name__ == "__main__":
    launch.device_limits = padded.device_limits = lambda device: (132, True)
    launch.barrier_words = lambda device, count: torch.empty(count, dtype=torch.int32, device=device)
    print_facts(
        {
            "1x128x20x256x256": lambda: _call((1, 128, 20, 256, 256), torch.contiguous_format),
            "1x512x5x32x32": lambda: _call((1, 512, 5, 32, 32), torch.contiguous_format),
            "1x512x4x32x32 channels-last": lambda: _call((1, 512, 4, 32, 32), torch.channels_last_3d),
            "1x512x5x64x64 channels-last": lambda: _call((1, 512, 5, 64, 64), torch.channels_last_3d),
            "1x256x7x128x128 channels-last": lambda: _call((1, 256, 7, 128, 128), torch.channels_last_3d),
            "1x128x13x256x256 padded": lambda: _call(
                (1, 128, 13, 256, 256), torch.contiguous_format, padded.groupnorm_silu_padded
            ),
            "1x512x4x64x64 channels-last padded": lambda: _call(
                (1, 512, 4, 64, 64), torch.channels_last_3d, padded.groupnorm_silu_padded
            ),
            "1x1024x8x8": lambda: _call((1, 1024, 8, 8), torch.contiguous_format),
            "1x128x17x256x256 channels-last": lambda: _call((1, 128, 17, 256, 256), torch.channels_last_3d),
        }
    )
