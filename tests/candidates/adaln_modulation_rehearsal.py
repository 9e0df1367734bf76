"""Run by test_adaln_modulation.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.adaln_modulation import inhouse, launch
from candidates.adaln_modulation.kernels import _rounded
from candidates.adaln_modulation.op import OP, native

BF16, FP32 = torch.bfloat16, torch.float32


def compare(x: Tensor, scale: Tensor, shift: Tensor | None = None, residual: Tensor | None = None,
            index: Tensor | None = None, constant: int = 1, upcast: bool = False) -> dict[str, Any]:  # fmt: skip
    before = x.clone()
    y = launch.modulate(x, scale, shift, residual, index, constant, upcast)
    right = native(x, scale, shift, residual, index, constant, upcast)
    return {
        "equal": torch.equal(y, right),
        "dtype": y.dtype == right.dtype == x.dtype,
        "strides": y.stride(),
        "input_kept": torch.equal(x, before),
    }


def numerics() -> dict[str, Any]:
    torch.manual_seed(0)
    seen = {}
    for x_dtype, dtype, upcast in ((BF16, BF16, False), (BF16, FP32, False), (BF16, BF16, True), (FP32, FP32, False),
                                   (torch.float16, torch.float16, False), (FP32, BF16, False)):  # fmt: skip
        x, residual = torch.randn(2, 2, 12, 40).to(x_dtype)
        packed = torch.randn(2, 12, 6, 40).to(dtype)
        tables = {
            "batch_2d": (packed[:, 0, 1], packed[:, 0, 2]),
            "batch": (packed[:, 0, 1:2], packed[:, 0, 2:3]),
            "one for all": (packed[:1, 0, 1:2], packed[:1, 0, 2:3]),
            "frame": (packed[:, :3, 1:2], packed[:, :3, 2:3]),
            "token": (packed[:, :, 1], packed[:, :, 2]),
            "frame scale, token shift": (packed[:, :3, 1:2], packed[:, :, 2]),
            "batch scale, frame shift": (packed[:, 0, 1:2], packed[:, :4, 2:3]),
        }
        kind = f"{x_dtype} {dtype} {upcast}"
        for name, (scale, shift) in tables.items():
            seen[f"{name}, {kind}"] = compare(x, scale, shift, upcast=upcast)
            seen[f"{name}, gate, {kind}"] = compare(x, scale, residual=residual, constant=0, upcast=upcast)
        index = torch.arange(12) * 7 % 5
        rows = packed[0, :5, 3], packed[0, :5, 4]
        seen[f"index, {kind}"] = compare(x[0], *rows, index=index, upcast=upcast)
        seen[f"index, gate, {kind}"] = compare(x[0], rows[0], None, residual[0], index, 0, upcast)
        seen[f"scale alone, {kind}"] = compare(x, packed[:, 0, 1:2], upcast=upcast)
    wide = torch.randn(1, 3, 1200).to(BF16)
    table = torch.randn(1, 2, 1200).to(BF16)
    seen["several columns"] = compare(wide, table[:, :1], table[:, 1:])
    for width in (1024, 1536):  # a token by 1024 channels, two tokens by 512
        whole, residual = torch.randn(2, 1, 3, width).to(BF16)
        table = torch.randn(1, 2, width).to(BF16)
        seen[f"whole columns, {width}"] = compare(whole, table[:, :1], table[:, 1:])
        seen[f"whole columns, {width}, gate"] = compare(whole, table[:, :1], residual=residual, constant=0)
        rows, index = torch.randn(5, 2, width).to(BF16), torch.tensor([4, 0, 3])
        seen[f"whole columns, {width}, index"] = compare(whole[0], rows[:, 0], rows[:, 1], index=index)
    frames = torch.randn(2, 3, 1, 40).to(BF16)
    seen["frames of one token"] = compare(torch.randn(2, 3, 40).to(BF16), frames, frames)
    long = torch.randn(1, 70, 130).to(BF16)
    table = torch.randn(1, 2, 130).to(BF16)
    strided = torch.randn(2, 6, 24).to(BF16)
    table8 = torch.randn(2, 2, 8).to(BF16)
    seen["one token"] = compare(long[:, :1], table[:, :1], table[:, 1:])
    seen["several rows"] = compare(long, table[:, :1], table[:, 1:])
    seen["sliced"] = compare(strided[..., 8:16], table8[:, :1], table8[:, 1:])
    seen["transposed"] = compare(strided[..., :8].transpose(1, 2).contiguous().transpose(1, 2), table8[:, :1])
    seen["residual of other strides"] = compare(
        strided[..., :8], table8[:, :1], residual=torch.randn(2, 8, 6).to(BF16).transpose(1, 2), constant=0
    )
    seen["table of strided channels"] = compare(strided[..., :8], torch.randn(2, 8, 1).to(BF16).transpose(1, 2))
    return seen


@triton.jit
def _round_kernel(x_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, _rounded(tl.load(x_ptr + i), tl.bfloat16, True))


def rounding() -> bool:
    """Ties, denormals, infinities and values around powers of two, as PyTorch rounds them."""
    torch.manual_seed(0)
    bits = torch.arange(32, dtype=torch.int32) * 0x2000 + 0x3F800000 - 0x8000
    x = torch.cat([bits.view(torch.float32), -bits.view(torch.float32)[:16], torch.randn(12)])
    x = torch.cat([x, torch.tensor([0.0, -0.0, torch.inf, 1e-40])])
    out = torch.empty(64)
    _round_kernel[(1,)](x, out)
    return torch.equal(out, x.bfloat16().float())


def opcheck() -> dict[str, str]:
    custom = torch.library.custom_op("rehearsal::modulation", inhouse.triton_modulation.run, mutates_args=())
    custom.register_fake(OP.fake)
    x, packed = torch.randn(2, 4, 8), torch.randn(2, 6, 8)
    results: dict[str, str] = {}
    for name, args in {
        "modulate": (x, packed[:, :1], packed[:, 1:2], None, None, 1, False),
        "gate": (x, packed[:, :1], None, x + 1, None, 0, False),
        "index": (x[0], packed[0], packed[1], None, torch.tensor([0, 5, 2, 2]), 1, False),
    }.items():
        results |= {f"{name} {k}": v for k, v in torch.library.opcheck(custom, args).items()}
    return results


if __name__ == "__main__":
    empty = torch.empty(0, 4, 8)
    shape = list(launch.modulate(empty, empty[:, :1], None, None, None, 1, False).shape)
    print(json.dumps({"numerics": numerics(), "rounding": rounding(), "opcheck": opcheck(), "empty": shape}))
