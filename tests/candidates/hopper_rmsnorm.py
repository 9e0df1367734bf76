"""Run by test_rmsnorm.py: compiles the kernels of some real shapes for sm_90."""

import torch

from candidates.rmsnorm import launch
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from tests.candidates.hopper import print_facts


def _call(rows: int, width: int, residual: bool = False, rounding: str = ONCE, weighted: bool = True) -> object:
    x = torch.empty((rows, width), dtype=torch.bfloat16, device="meta")
    weight = torch.empty(width, dtype=torch.bfloat16, device="meta") if weighted else None
    if residual:
        return launch.residual_rmsnorm(x, weight, 1e-6, x, rounding)
    return launch.rmsnorm(x, weight, 1e-6, rounding)


def _call_packed_heads() -> object:
    packed = torch.empty((1, 4608, 3 * 3072), dtype=torch.bfloat16, device="meta")
    weight = torch.empty(128, dtype=torch.bfloat16, device="meta")
    return launch.rmsnorm(packed[..., :3072].unflatten(-1, (24, 128)), weight, 1e-6)


if __name__ == "__main__":
    launch._sm_count = lambda device: 132
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
            "4128x3840 before_weight": lambda: _call(4128, 3840, rounding=BEFORE_WEIGHT),
            "98304x128 before_weight": lambda: _call(98304, 128, rounding=BEFORE_WEIGHT),
            "2048x2048 residual before_weight": lambda: _call(2048, 2048, residual=True, rounding=BEFORE_WEIGHT),
            "6144x2048 without a weight": lambda: _call(6144, 2048, weighted=False),
        }
    )
