"""Run by test_rmsnorm.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.rmsnorm import inhouse, launch
from candidates.rmsnorm.kernels import DENSE, EVEN_STEPS, STRIDED, _row_offset
from candidates.rmsnorm.op import OP, native
from candidates.rmsnorm.rounding import BEFORE_WEIGHT


def weight_of(x: Tensor) -> Tensor:
    return 1 + 0.2 * torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(1))


def compare(x: Tensor, residual: Tensor, weighted: bool = True) -> dict[str, Any]:
    weight, before = weight_of(x) if weighted else None, x.clone()
    wide = None if weight is None else weight.double()
    y = launch.rmsnorm(x, weight, 1e-6)
    normed, h = launch.residual_rmsnorm(x, weight, 1e-6, residual)
    return {
        "error": (y - native(x.double(), wide, 1e-6)).abs().max().item(),
        "residual_error": (normed - native(h.double(), wide, 1e-6)).abs().max().item(),
        "sum_exact": torch.equal(h, x + residual),
        "contiguous": y.is_contiguous() and normed.is_contiguous(),
        "h_strides": h.stride(),
        "input_kept": torch.equal(x, before),
    }


def numerics() -> dict[str, Any]:
    torch.manual_seed(0)
    packed = torch.randn(2, 3, 4, 96)
    inputs = {f"width {d}": torch.randn(3, d) for d in (1, 5, 33, 64, 128, 1000, 1536, 2240, 3840, 5120)}
    inputs |= {
        "one row": torch.randn(1, 2048),
        "many rows": torch.randn(70, 128),
        "as many rows as tiles hold": torch.randn(2, 8, 4, 128),
        "as many rows as tiles hold, packed": torch.randn(64, 3 * 128)[:, 128:256],
        "four dims": packed,
        "sliced": packed[..., 32:64],
        "heads of a packed projection": torch.randn(2, 5, 3 * 4 * 32)[..., 128:256].unflatten(-1, (4, 32)),
        "heads of one packed sequence": torch.randn(1, 5, 3 * 4 * 32)[..., 128:256].unflatten(-1, (4, 32)),
        "transposed": packed.transpose(1, 2),
        "strided last dim": torch.randn(2, 32, 6).transpose(1, 2),
        "two dims transposed": torch.randn(48, 5).T,
        "every other": packed[:, ::2, :, :32],
        "size one with odd stride": torch.randn(4, 32).as_strided((1, 4, 32), (37, 32, 1)),
        "two passes": torch.randn(2, 20000),
        "two passes, strided": torch.randn(1, 17000, 2).transpose(1, 2),
    }
    seen = {name: compare(x, torch.randn(x.shape)) for name, x in inputs.items()}
    for width in (1536, 20000):
        seen[f"no weight, width {width}"] = compare(torch.randn(3, width), torch.randn(3, width), weighted=False)
    seen["residual of other strides"] = compare(packed, torch.randn(2, 4, 3, 96).transpose(1, 2))
    return seen


def rounding() -> dict[str, dict[str, bool]]:
    """Whether the result is, to the bit, the result without a weight times the weight, in fp16.

    Not in bf16: the interpreter truncates to it.
    """
    seen = {}
    for width in (96, 1536, 17000):
        x, residual = torch.randn((2, 3, width), generator=torch.Generator().manual_seed(width)).half()
        weight = weight_of(x).half()
        rounded_first = launch.rmsnorm(x, None, 1e-6) * weight
        normed, h = launch.residual_rmsnorm(x, weight, 1e-6, residual, BEFORE_WEIGHT)
        seen[str(width)] = {
            "before_weight": torch.equal(launch.rmsnorm(x, weight, 1e-6, BEFORE_WEIGHT), rounded_first),
            "residual": torch.equal(normed, launch.rmsnorm(h, None, 1e-6) * weight),
            "once": torch.equal(launch.rmsnorm(x, weight, 1e-6), rounded_first),
        }
    return seen


def bf16() -> dict[str, Any]:
    """After the residual add, rounding before the weight: whether the sum is exact, and steps from native."""
    x, residual = torch.randn((2, 4, 1536), generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = weight_of(x).bfloat16()
    normed, h = launch.residual_rmsnorm(x, weight, 1e-6, residual, BEFORE_WEIGHT)
    right = native(h, weight, 1e-6, BEFORE_WEIGHT)
    steps = (normed.view(torch.int16).int() - right.view(torch.int16).int()).abs().max().item()
    return {"sum_exact": torch.equal(h, x + residual), "steps": steps}


@triton.jit
def _offsets_kernel(out_ptr, row, N1, N2, s_0, s_1, s_2):
    rows, lane = row + tl.arange(0, 2), tl.arange(0, 2)
    tl.store(out_ptr + lane, _row_offset(rows, 128, N1, N2, s_0, s_1, s_2, STRIDED))
    tl.store(out_ptr + 2 + lane, _row_offset(rows, 128, N1, N2, s_0, s_1, s_2, EVEN_STEPS))
    tl.store(out_ptr + 4 + lane, _row_offset(rows, 128, N1, N2, s_0, s_1, s_2, DENSE))


def offsets() -> list[int]:
    """Offsets of rows 2 * 10^9 + {0, 1}: through three strides, through one, and one behind the other."""
    out = torch.zeros(6, dtype=torch.int64)
    _offsets_kernel[(1,)](out, 2_000_000_000, 7, 1000, 1 << 40, 1 << 33, 5120)
    return out.tolist()


def opcheck() -> dict[str, str]:
    plain = torch.library.custom_op("rehearsal::rmsnorm", inhouse.triton_rmsnorm.run, mutates_args=())
    plain.register_fake(OP.fake)
    fused = torch.library.custom_op("rehearsal::residual_rmsnorm", inhouse.triton_residual_rmsnorm.run, mutates_args=())
    assert inhouse.triton_residual_rmsnorm.fake is not None
    fused.register_fake(inhouse.triton_residual_rmsnorm.fake)
    results: dict[str, str] = {}
    for name, x in {"contiguous": torch.randn(2, 3, 48), "sliced": torch.randn(2, 3, 96)[..., 16:64]}.items():
        weight = weight_of(x)
        results |= {f"{name} {k}": v for k, v in torch.library.opcheck(plain, (x, weight, 1e-6)).items()}
        bare = torch.library.opcheck(plain, (x, None, 1e-6, "once"))
        results |= {f"{name} without a weight {k}": v for k, v in bare.items()}
        checked = torch.library.opcheck(fused, (x, weight, 1e-6, torch.randn(x.shape), BEFORE_WEIGHT))
        results |= {f"{name} residual {k}": v for k, v in checked.items()}
    return results


if __name__ == "__main__":
    empty = torch.empty(0, 64)
    shape = list(launch.rmsnorm(empty, weight_of(empty), 1e-6).shape)
    seen = {
        "numerics": numerics(),
        "rounding": rounding(),
        "bf16": bf16(),
        "offsets": offsets(),
        "opcheck": opcheck(),
        "empty": shape,
    }
    print(json.dumps(seen))
