"""Run by test_adaln_modulation.py: compiles the kernel at some real shapes for sm_90."""

import torch

from candidates.adaln_modulation import launch
from tests.candidates.hopper import print_facts


def _call(tokens: int, width: int, per: str, dtype: torch.dtype, gate: bool = False) -> object:
    with torch.device("meta"):
        x = torch.empty((1, tokens, width), dtype=torch.bfloat16)
        packed = torch.empty((1, tokens if per == "token" else 3, 6, width), dtype=dtype)
    table = {"batch": packed[:, 0, 1:2], "frame": packed[:, :, 1:2], "token": packed[:, :, 1]}[per]
    return launch.modulate(x, table, None if gate else table, x if gate else None, None, 0 if gate else 1, False)


if __name__ == "__main__":
    bf16, fp32 = torch.bfloat16, torch.float32
    print_facts(
        {
            "32760x1536 fp32 batch": lambda: _call(32760, 1536, "batch", fp32),
            "4096x3072 bf16 batch": lambda: _call(4096, 3072, "batch", bf16),
            "4096x3072 bf16 batch gate": lambda: _call(4096, 3072, "batch", bf16, gate=True),
            "1024x2240 bf16 batch": lambda: _call(1024, 2240, "batch", bf16),
            "75600x5120 fp32 batch": lambda: _call(75600, 5120, "batch", fp32),
            "4680x5120 fp32 frame": lambda: _call(4680, 5120, "frame", fp32),
            "17850x3072 fp32 token": lambda: _call(17850, 3072, "token", fp32),
        }
    )
