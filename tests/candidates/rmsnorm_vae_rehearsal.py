"""Run by test_rmsnorm_vae.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.rmsnorm_vae import inhouse, launch
from candidates.rmsnorm_vae.kernels import _position_offset
from candidates.rmsnorm_vae.op import OP, native

CL2, CL3 = torch.channels_last, torch.channels_last_3d


def weights_of(x: Tensor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (x.shape[1], *[1] * (x.ndim - 2))
    return 1 + 0.2 * torch.randn(shape, generator=generator), 0.2 * torch.randn(shape, generator=generator)


def compare(x: Tensor, with_bias: bool = False) -> dict[str, Any]:
    gamma, bias = weights_of(x)
    chosen, before = bias if with_bias else None, x.clone()
    y = launch.rmsnorm_vae(x, gamma, chosen, 1e-6)
    oracle = native(x.double(), gamma.double(), None if chosen is None else chosen.double(), 1e-6, False)
    return {
        "error": (y - oracle).abs().max().item(),
        "strides": y.stride(),
        "input_kept": torch.equal(x, before),
    }


def numerics() -> dict[str, Any]:
    torch.manual_seed(0)
    deep = torch.randn(2, 48, 3, 7, 10)
    flat = torch.randn(2, 33, 5, 9)
    inputs = {
        "three pieces": deep,
        "three pieces, channels-last": deep.contiguous(memory_format=CL3),
        "odd": flat,
        "odd, channels-last": flat.contiguous(memory_format=CL2),
        "one channel": torch.randn(1, 1, 3, 4, 5),
        "one position": torch.randn(3, 40, 1, 1),
        "many tiles": torch.randn(1, 8, 2, 33, 17),
        "many channels": torch.randn(1, 1100, 3, 3),
        "five pieces": torch.randn(1, 160, 1, 4, 5),
        "sliced": deep[..., 3:8],
        "transposed": deep.transpose(1, 2).contiguous().transpose(1, 2),
        "many rows, channels-last": torch.randn(2, 96, 2, 5, 7).contiguous(memory_format=CL3),
        "one piece, channels-last": torch.randn(1, 256, 1, 3, 5).contiguous(memory_format=CL3),
        "five pieces, channels-last": torch.randn(1, 160, 1, 3, 4).contiguous(memory_format=CL3),
        "many channels, channels-last": torch.randn(1, 1700, 2, 2).contiguous(memory_format=CL2),
        "some channels of channels-last": deep.contiguous(memory_format=CL3)[:, 8:40],
        "crop of channels-last": deep.contiguous(memory_format=CL3)[:, :, :, 1:6, ::2],
        "odd stride of size one": deep[:1, :, :1].as_strided((1, 48, 1, 7, 10), (37, 70, 37, 10, 1)),
    }
    seen = {name: compare(x) for name, x in inputs.items()}
    seen["bias"] = compare(deep, with_bias=True)
    seen["bias, channels-last"] = compare(inputs["odd, channels-last"], with_bias=True)
    seen["small"] = compare(deep * 2.0**-10)
    return seen


def padded() -> dict[str, Any]:
    """Largest error, and whether the strides are those of the composed native."""
    torch.manual_seed(0)
    seen = {}
    for name, memory_format in {"contiguous": torch.contiguous_format, "channels-last": CL3}.items():
        for frames, channels, with_bias in ((1, 48, False), (3, 33, True)):
            x = torch.randn(2, channels, frames, 5, 6).contiguous(memory_format=memory_format)
            cache = torch.randn(2, channels, 2, 5, 6).contiguous(memory_format=memory_format)
            gamma, bias = weights_of(x)
            chosen = bias if with_bias else None
            args = {"x": x, "gamma": gamma, "bias": chosen, "eps": 1e-6, "upcast": False}
            for context, given in (("silu_pad", args), ("silu_cache_pad", {**args, "cache": cache})):
                run = inhouse.triton_silu_pad if context == "silu_pad" else inhouse.triton_silu_cache_pad
                y, right = run(**given), OP.context(context).compose(native)(**given)
                seen[f"{context} {name} T={frames} C={channels}"] = {
                    "error": (y - right).abs().max().item(),
                    "channels_last": y.is_contiguous(memory_format=CL3),
                }
    last = torch.randn(1, 48, 2, 5, 6).contiguous(memory_format=CL3)
    args = {"x": last, "gamma": weights_of(last)[0], "bias": None, "eps": 1e-6, "upcast": False}
    for name, cache in {"contiguous": last.contiguous(), "sliced": torch.cat([last, last], 1)[:, :48]}.items():
        given = {**args, "cache": cache}
        y, right = inhouse.triton_silu_cache_pad(**given), OP.context("silu_cache_pad").compose(native)(**given)
        seen[f"channels-last x, {name} cache"] = {
            "error": (y - right).abs().max().item(),
            "channels_last": y.is_contiguous(memory_format=CL3),
        }
    strided = torch.randn(1, 48, 3, 5, 12)[..., 2:8]
    cache = torch.randn(1, 48, 2, 6, 5).transpose(3, 4)
    args = {"x": strided, "gamma": weights_of(strided)[0], "bias": None, "eps": 1e-6, "upcast": False, "cache": cache}
    y, right = inhouse.triton_silu_cache_pad(**args), OP.context("silu_cache_pad").compose(native)(**args)
    seen["strided x and cache"] = {
        "error": (y - right).abs().max().item(),
        "channels_last": y.is_contiguous(memory_format=CL3),
    }
    return seen


@triton.jit
def _offsets_kernel(out_ptr, s, H, W, s_t, s_h, s_w):
    position = s + tl.arange(0, 2)
    tl.store(out_ptr + tl.arange(0, 2), _position_offset(position, H, W, s_t, s_h, s_w, False))
    tl.store(out_ptr + 2 + tl.arange(0, 2), _position_offset(position, H, W, s_t, s_h, s_w, True))


def offsets() -> list[int]:
    """Offsets of positions 2 * 10^9 + {0, 1}, through three strides and through one."""
    out = torch.zeros(4, dtype=torch.int64)
    _offsets_kernel[(1,)](out, 2_000_000_000, 1 << 11, 1 << 11, 1 << 40, 1 << 33, 5120)
    return out.tolist()


def opcheck() -> dict[str, str]:
    plain = torch.library.custom_op("rehearsal::rmsnorm_vae", inhouse.triton_rmsnorm_vae.run, mutates_args=())
    plain.register_fake(OP.fake)
    cached = torch.library.custom_op("rehearsal::silu_cache_pad", inhouse.triton_silu_cache_pad.run, mutates_args=())
    assert inhouse.triton_silu_cache_pad.fake is not None
    cached.register_fake(inhouse.triton_silu_cache_pad.fake)
    x = torch.randn(1, 16, 1, 4, 6)
    gamma, bias = weights_of(x)
    results: dict[str, str] = {}
    for name, y in {"contiguous": x, "channels_last": x.contiguous(memory_format=CL3)}.items():
        checked = torch.library.opcheck(plain, (y, gamma, bias, 1e-6, False))
        results |= {f"{name} {k}": v for k, v in checked.items()}
        checked = torch.library.opcheck(cached, (y, gamma, None, 1e-6, False, y.repeat(1, 1, 2, 1, 1)))
        results |= {f"{name} cached {k}": v for k, v in checked.items()}
    return results


def specials() -> dict[str, Any]:
    empty, zeros = torch.empty(0, 16, 2, 4, 4), torch.zeros(1, 16, 2, 4, 4)
    return {
        "empty": list(launch.rmsnorm_vae(empty, *weights_of(empty), 1e-6).shape),
        "empty padded": list(launch.rmsnorm_vae_silu_padded(empty, *weights_of(empty), 1e-6, 2, None).shape),
        "zeros": launch.rmsnorm_vae(zeros, weights_of(zeros)[0], None, 1e-12).abs().max().item(),
    }


if __name__ == "__main__":
    answers = {
        "numerics": numerics(), "padded": padded(), "offsets": offsets(), "opcheck": opcheck(), "specials": specials(),
    }  # fmt: skip
    print(json.dumps(answers))
