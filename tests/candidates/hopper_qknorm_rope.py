"""Run by test_qknorm_rope.py: compiles the kernels of some real shapes for sm_90."""

import torch

from candidates.qknorm_rope import launch
from tests.candidates.hopper import print_facts

BF16, FP32 = torch.bfloat16, torch.float32


def _call(
    tokens: int, heads: int, kv_heads: int, pairs: str, table: str, dtype: torch.dtype, *, across: bool = False,
    rotary_dim: int = 128,
) -> object:  # fmt: skip
    """q and k as views of a packed qkv."""
    qkv = torch.empty((1, tokens, (heads + 2 * kv_heads) * 128), dtype=BF16, device="meta")
    q, k, _ = qkv.split((heads * 128, kv_heads * 128, kv_heads * 128), dim=-1)
    weights = (torch.empty((n if across else 1) * 128, dtype=BF16, device="meta") for n in (heads, kv_heads))
    width = rotary_dim // 2 if table == "half" else rotary_dim
    cos = torch.empty((tokens, width), dtype=dtype, device="meta")
    views = (q.unflatten(-1, (heads, 128)), k.unflatten(-1, (kv_heads, 128)))
    return launch.qknorm_rope(*views, *weights, cos, cos, 1e-6, across, pairs, table)


if __name__ == "__main__":
    print_facts(
        {
            "FLUX.1": lambda: _call(4608, 24, 24, "interleaved", "repeated", FP32),
            "Qwen-Image": lambda: _call(4096, 24, 24, "interleaved", "half", BF16),
            "thinker": lambda: _call(2048, 32, 4, "neox", "half", BF16),
            "MiniMax-H3": lambda: _call(37760, 14, 14, "neox", "half", BF16, rotary_dim=96),
            "Wan 1.3B": lambda: _call(32760, 12, 12, "interleaved", "repeated", FP32, across=True),
            "Wan 14B": lambda: _call(75600, 40, 40, "interleaved", "repeated", FP32, across=True),
        }
    )
