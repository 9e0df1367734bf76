"""Run by test_groupnorm_silu.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
import warnings
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.groupnorm_silu import launch, plan
from candidates.groupnorm_silu.inhouse import triton_groupnorm_silu, triton_groupnorm_silu_pad
from candidates.groupnorm_silu.kernels.flat import _group_base, _offset, _tile_index
from candidates.groupnorm_silu.kernels.rows import _row_offset
from candidates.groupnorm_silu.op import OP, native, replicate_padded
from candidates.groupnorm_silu.padded import groupnorm_silu_padded

# masked lanes may overflow in exp; numpy says so, a GPU does not
warnings.filterwarnings("ignore", category=RuntimeWarning)


STREAMING = plan.Plan(
    plan.Path.ROWS_RESIDENT, warps=1, block=256, unroll=2, chunk=1600, chunks=3, columns=8, tiles=6, stream=1408
)
"""Two times 22 tiles of 32 rows, the last six kept; a third chunk that ends before its kept rows."""


def arguments(x: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    channels = x.shape[1]
    return 1 + 0.2 * torch.randn(channels, generator=generator), 0.2 * torch.randn(channels, generator=generator)


def compare(x: Tensor, groups: int, chosen: plan.Plan | None = None) -> dict[str, Any]:
    weight, bias = arguments(x)
    before = x.clone()
    y = launch.groupnorm_silu(x, weight, bias, groups, 1e-6, chosen)
    oracle = native(x.double(), weight.double(), bias.double(), groups, 1e-6)
    used = chosen or plan.make_plan(launch.geometry_of(x, y, groups), 1)
    return {
        "path": used.path,
        "error": (y - oracle).abs().max().item(),
        "strides": y.stride(),
        "input_kept": torch.equal(x, before),
    }


def numerics() -> dict[str, Any]:
    torch.manual_seed(0)
    seen = {}
    cl2, cl3 = torch.channels_last, torch.channels_last_3d
    for offset in (0.0, 100.0):
        flat = torch.randn(2, 16, 33, 15) + offset
        deep = torch.randn(2, 30, 3, 17, 8) + offset
        wide = torch.randn(1, 8, 3, 37, 40) + offset
        inputs = {
            "two_dims": (torch.randn(2, 32) + offset, 8),
            "odd": (flat, 8),
            "one_group": (flat, 1),
            "group_per_channel": (flat, 16),
            "channels_last": (flat.contiguous(memory_format=cl2), 8),
            "channels_last_one_group": (flat.contiguous(memory_format=cl2), 1),
            "channels_last_3d_ten_channels_a_group": (deep.contiguous(memory_format=cl3), 3),
            "channels_last_3d_crop": (deep.contiguous(memory_format=cl3)[:, :, :, 2:9, ::2], 30),
            "sliced": (flat[..., 5:10], 8),
            "transposed": (flat.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3), 8),
            "crop": (deep[:, :, :, 2:9, ::2], 2),
            "odd_stride_of_size_one": (flat[:1].as_strided((1, 16, 1, 9, 7), (37, 63, 37, 7, 1)), 8),
            "wide": (wide, 2),
            "wide_sliced": (wide[..., 3:38], 2),
        }
        for name, (x, groups) in inputs.items():
            seen[f"{name}@{offset:g}"] = compare(x, groups)
        last = wide.contiguous(memory_format=cl3)
        geometry, last_geometry = (launch.geometry_of(y, y, 2) for y in (wide, last))
        plans = {
            "two_pass": (wide, plan.plan_two_pass(geometry, sm_count=9)),
            "rows": (last, plan.plan_rows(last_geometry, sm_count=9)),
            "flat_resident": (wide, plan.plan_flat_resident(geometry, sm_count=9)),
            "rows_resident": (last, plan.plan_rows_resident(last_geometry, sm_count=9)),
            "rows_streaming": (last, STREAMING),
        }
        for name, (y, chosen) in plans.items():
            seen[f"{name}_in_chunks@{offset:g}"] = compare(y, 2, chosen)
    return seen


def padded() -> dict[str, Any]:
    """Largest error against the fp64 oracle, and strides, of the padded output, per x."""
    torch.manual_seed(2)
    cl3 = torch.channels_last_3d
    deep, small = torch.randn(2, 6, 3, 5, 8), torch.randn(1, 4, 1, 1, 1)
    blocks, rows = torch.randn(1, 80, 1, 2, 70), torch.randn(1, 136, 2, 3, 20)
    inputs = {
        "contiguous": (deep, 3),
        "channels_last": (deep.contiguous(memory_format=cl3), 3),
        "ten_channels_a_group": (torch.randn(1, 30, 2, 3, 4).contiguous(memory_format=cl3), 3),
        "crop": (deep[:, :, :, 1:4, ::2], 2),
        "one_position": (small, 2),
        "lines_and_channels_in_pieces": (blocks, 8),
        "rows_in_pieces": (rows.contiguous(memory_format=cl3), 4),
    }
    seen = {}
    for name, (x, groups) in inputs.items():
        weight, bias = arguments(x)
        before = x.clone()
        y = groupnorm_silu_padded(x, weight, bias, groups, 1e-6)
        oracle = replicate_padded(native(x.double(), weight.double(), bias.double(), groups, 1e-6))
        seen[name] = {
            "error": (y - oracle).abs().max().item(),
            "channels_last": y.is_contiguous(memory_format=cl3),
            "input_kept": torch.equal(x, before),
        }
    return seen


@triton.jit
def _offsets_kernel(out_ptr, group, G, CG, S, H, W, s_n, s_c, s_t, s_h, s_w, start, row):
    base = _group_base(tl.program_id(0) + group, G, CG, s_n, s_c, 1, False)
    index = _tile_index(start, 2, 1, True)
    offsets = tl.reshape(_offset(index, S, H, W, s_c, s_t, s_h, s_w, 1, False), (2,))
    tl.store(out_ptr + tl.arange(0, 2), base + offsets)
    rows = row + tl.arange(0, 2)
    tl.store(out_ptr + 2 + tl.arange(0, 2), _row_offset(rows, H, W, s_t, s_h, s_w, False))
    tl.store(out_ptr + 4 + tl.arange(0, 2), _row_offset(rows, H, W, s_t, s_h, s_w, True))


def offsets() -> list[int]:
    """Offsets of elements 5 * 10^9 + {0, 1} of group 3 of image 1, and of two rows, in a tensor too big to allocate."""
    out = torch.zeros(6, dtype=torch.int64)
    sizes, strides = (1 << 33, 1 << 11, 1 << 11), (1 << 40, 1 << 33, 1 << 22, 1 << 11, 3)
    _offsets_kernel[(1,)](out, 11, 8, 4, *sizes, *strides, 5_000_000_000, 2_000_000_000)
    return out.tolist()


def opcheck() -> dict[str, str]:
    custom = torch.library.custom_op("rehearsal::groupnorm_silu", triton_groupnorm_silu.run, mutates_args=())
    custom.register_fake(OP.fake)
    x = torch.randn(2, 16, 4, 6)
    results: dict[str, str] = {}
    for name, y in {"contiguous": x, "channels_last": x.contiguous(memory_format=torch.channels_last)}.items():
        results |= {f"{name} {k}": v for k, v in torch.library.opcheck(custom, (y, *arguments(y), 4, 1e-6)).items()}
    custom = torch.library.custom_op("rehearsal::groupnorm_silu_pad", triton_groupnorm_silu_pad.run, mutates_args=())
    custom.register_fake(triton_groupnorm_silu_pad.fake)
    deep = torch.randn(1, 8, 2, 3, 5)
    found = torch.library.opcheck(custom, (deep, *arguments(deep), 4, 1e-6))
    return results | {f"padded {k}": v for k, v in found.items()}


def specials() -> dict[str, Any]:
    empty = torch.empty(0, 16, 4, 4)
    hot = torch.randn(1, 8, 4, 4)
    hot[0, 0, 0, 0] = torch.nan
    y = launch.groupnorm_silu(hot, *arguments(hot), 4, 1e-6)
    flat = torch.full((1, 8, 3, 5), 3.0)
    weight, bias = arguments(flat)
    off = launch.groupnorm_silu(flat, weight, bias, 4, 1e-6) - torch.nn.functional.silu(bias)[:, None, None]
    nobody = torch.empty(0, 16, 2, 4, 4)
    return {
        "empty_padded": list(groupnorm_silu_padded(nobody, *arguments(nobody), 4, 1e-6).shape),
        "empty": list(launch.groupnorm_silu(empty, *arguments(empty), 4, 1e-6).shape),
        "nan_groups": torch.isnan(y).reshape(4, -1).any(1).tolist(),
        "constant_error": off.abs().max().item(),
    }


if __name__ == "__main__":
    parts = (numerics, padded, offsets, opcheck, specials)
    print(json.dumps({part.__name__: part() for part in parts}))
