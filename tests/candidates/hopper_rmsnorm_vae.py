"""Run by test_rmsnorm_vae.py: compiles the kernels of some real shapes for sm_90."""

import torch

from candidates.rmsnorm_vae import launch
from tests.candidates.hopper import print_facts


def _call(shape: tuple[int, ...], last: bool, padded: bool = False) -> object:
    memory_format = torch.channels_last_3d if last else torch.contiguous_format
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta").to(memory_format=memory_format)
    gamma = torch.empty((shape[1], 1, 1, 1), dtype=torch.bfloat16, device="meta")
    if padded:
        return launch.rmsnorm_vae_silu_padded(x, gamma, None, 1e-6, 2, x[:, :, :2])
    return launch.rmsnorm_vae(x, gamma, None, 1e-6)


if __name__ == "__main__":
    launch._sm_count = lambda device: 132
    print_facts(
        {
            f"{'x'.join(map(str, shape))}{' channels-last' * last}": lambda s=shape, last=last: _call(s, last)
            for shape in ((1, 96, 4, 480, 832), (1, 384, 1, 60, 104), (1, 1024, 1, 30, 64))
            for last in (False, True)
        }
        | {
            f"{channels}x32 channels-last": lambda c=channels: _call((1, c, 1, 4, 8), True)
            for channels in (160, 192, 256, 320, 2048, 4096)
        }
        | {"1x384x1x60x104 padded channels-last": lambda: _call((1, 384, 1, 60, 104), True, padded=True)}
        | {"1x96x4x480x832 padded channels-last": lambda: _call((1, 96, 4, 480, 832), True, padded=True)}
        | {
            f"{channels}x1x60x104 padded": lambda c=channels: _call((1, c, 1, 60, 104), False, padded=True)
            for channels in (96, 192, 384, 1024)
        }
    )
