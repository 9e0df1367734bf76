"""Run by test_layernorm.py: compiles the LayerNorm kernel of some real shapes for sm_90."""

import torch
from torch import Tensor

from candidates.layernorm import launch
from tests.candidates.hopper import print_facts

BF16, FP32 = torch.bfloat16, torch.float32
EPS = 1e-6


def meta(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def modulation(d: int, dtype: torch.dtype = BF16, tokens: int = 1) -> tuple[Tensor, Tensor]:
    return meta(1, tokens, d, dtype=dtype), meta(1, tokens, d, dtype=dtype)


def residual(s: int, d: int, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor]:
    return meta(1, s, d), meta(1, 1, d, dtype=dtype)


if __name__ == "__main__":
    frames = meta(1, 3, 1, 5120, dtype=FP32)
    affine = meta(5120, dtype=FP32), meta(5120, dtype=FP32)
    print_facts(
        {
            "32760x1536": lambda: launch.modulated_layernorm(meta(1, 32760, 1536), *modulation(1536), EPS),
            "75600x5120 affine": lambda: launch.layernorm(meta(1, 75600, 5120), *affine, EPS),
            "27280x3072 fp32 per token": lambda: launch.modulated_layernorm(
                meta(1, 27280, 3072), *modulation(3072, FP32, 27280), EPS
            ),
            "4680x5120 per frame": lambda: launch.modulated_layernorm(meta(1, 4680, 5120), frames, frames, EPS),
            "128x3072": lambda: launch.modulated_layernorm(meta(1, 128, 3072), *modulation(3072), EPS),
            "4096x3072 residual": lambda: launch.residual_modulated_layernorm(
                meta(1, 4096, 3072), *modulation(3072), EPS, *residual(4096, 3072)
            ),
            "75600x5120 residual": lambda: launch.residual_modulated_layernorm(
                meta(1, 75600, 5120), *modulation(5120, FP32), EPS, *residual(75600, 5120, FP32)
            ),
        }
    )
