"""Run by test_rmsnorm.py: compiles the kernels of some real shapes for sm_90."""

import torch

from candidates.rmsnorm import launch
from tests.candidates.hopper import print_facts


def _call(rows: int, width: int, residual: bool = False) -> object:
    x = torch.empty((rows, width), dtype=torch.bfloat16, device="meta")
    weight = torch.empty(width, dtype=torch.bfloat16, device="meta")
    return launch.residual_rmsnorm(x, weight, 1e-6, x) if residual else launch.rmsnorm(x, weight, 1e-6)


def _call_packed_heads() -> object:
    packed = torch.empty((1, 4608, 3 * 3072), dtype=torch.bfloat16, device="meta")
    weight = torch.empty(128, dtype=torch.bfloat16, device="meta")
    return launch.rmsnorm(packed[..., :3072].unflatten(-1, (24, 128)), weight, 1e-6)


if __name__ == "__main__":
    launch._limits = lambda device: (132, True)
    print_facts(
        {
            "98304x128": lambda: _call(98304, 128),
            "4608x24x128 packed": _call_packed_heads,
            "512x1536": lambda: _call(512, 1536),
            "32760x1536": lambda: _call(32760, 1536),
            "65520x2240": lambda: _call(65520, 2240),
            "75600x5120": lambda: _call(75600, 5120),
            "75600x5120 residual": lambda: _call(75600, 5120, residual=True),
            "64x20000": lambda: _call(64, 20000),
        },
        waits=True,
    )
