"""Run by test_rope_wan.py: compiles the kernel at some real shapes for sm_90."""

import torch

from candidates.rope_wan import launch
from tests.candidates.hopper import print_facts

BF16, FP32 = torch.bfloat16, torch.float32


def _call(S: int, H: int, D: int = 128, pairs: str = "interleaved", width: str = "half", tables: torch.dtype = BF16,
          R: int = 128, k_heads: int = 0, form: str = "pair") -> object:  # fmt: skip
    x = torch.empty((1, S, H, D), dtype=BF16, device="meta")
    table = torch.empty((S, R if width == "full" else R // 2), dtype=tables, device="meta")
    if k_heads:
        k = torch.empty((1, S, k_heads, D), dtype=BF16, device="meta")
        return launch.rope_qk(x, k, table, table, "rotate_half", pairs, width)
    return launch.rope(x, table, table, form, pairs, width)


if __name__ == "__main__":
    print_facts(
        {
            "wan 1.3b": lambda: _call(32760, 12),
            "wan of diffusers": lambda: _call(32760, 40, width="full", tables=FP32),
            "wan 1.3b of diffusers": lambda: _call(32760, 12, width="full", tables=FP32),
            "flux2": lambda: _call(4608, 48, width="full", tables=FP32, form="rotate_half"),
            "qwen3 q and k": lambda: _call(2048, 32, pairs="halves", width="full", k_heads=4),
            "ltx": lambda: _call(6144, 1, D=2048, width="full", tables=FP32, R=2048, form="rotate_half"),
            "part of a head": lambda: _call(4096, 32, R=64),
        }
    )
