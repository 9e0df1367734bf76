"""Run by test_layernorm_exact.py with TRITON_INTERPRET=1; prints what it saw as JSON.

Bits are compared with torch's CUDA kernel as NumPy has it. The interpreter does not fuse, so neither does the
comparison. Roundings are seen in fp16, since the interpreter truncates to bf16; the kernel's code for both is one.
"""

import itertools
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from candidates.adalayernorm import op as ada
from candidates.layernorm import launch_exact
from candidates.layernorm import op as ln
from tests.candidates.aten_layernorm import normalised
from tests.candidates.layernorm_rehearsal import EPS, drawn, inputs, modulations

WARPS = (2, 4)


def norms() -> dict[str, dict[str, float]]:
    """Largest error against fp64, plain and affine, of every layout and width that is taken."""
    seen = {}
    for name, x in inputs().items():
        if launch_exact.why_not_exact(x.shape[-1]):
            continue
        weight, bias, before = 1 + drawn(x.shape[-1], seed=2), drawn(x.shape[-1], seed=3), x.clone()
        outputs = {
            "plain": launch_exact.exact_layernorm(x, None, None, EPS, warps=2),
            "affine": launch_exact.exact_layernorm(x, weight, bias, EPS, warps=4),
        }
        plain = ln.native(x.double(), None, None, EPS)
        affine = ln.native(x.double(), weight.double(), bias.double(), EPS)
        seen[name] = {
            kind: (y - (affine if kind == "affine" else plain)).abs().max().item() for kind, y in outputs.items()
        }
        assert torch.equal(x, before), name
        assert all(y.is_contiguous() for y in outputs.values()), name
    return seen


def in_torchs_order(x: Tensor) -> Tensor:
    """Normalised rows in fp32."""
    rows = x.float().reshape(-1, x.shape[-1]).numpy()
    return torch.from_numpy(np.stack([normalised(row, EPS, fused=False) for row in rows])).view(x.shape)


def native_in_torchs_order(x: Tensor, scale: Tensor, shift: Tensor, eps: float, formula: str) -> Tensor:
    """`adalayernorm.native`, its norm taken from NumPy."""
    y = in_torchs_order(x)
    return ada.modulate(y.to(x.dtype) if formula == ada.VLLM_OMNI else y, scale, shift).to(x.dtype)


def order() -> dict[str, bool]:
    """Whether rows come out in torch's bits, dense ones and columns of a transposed tensor.

    The second row differs most from one of torch's threads to the next, so that every merge shows in the result.
    """
    seen = {}
    for d, warps in itertools.product((512, 516, 2240, 3072, 5120), WARPS):
        x = drawn(1, 2, d, seed=d) * 3 + 1
        x[:, 1] += 9.7 * (torch.arange(d) // 4 % 128)
        right = in_torchs_order(x)
        for name, rows in (("dense", x), ("strided", x.transpose(1, 2).contiguous().transpose(1, 2))):
            y = launch_exact.exact_layernorm(rows, None, None, EPS, warps)
            seen[f"{d} {warps} {name}"] = torch.equal(y, right)
    return seen


def roundings() -> dict[str, bool]:
    """Whether the modulated chains round where eager operators do: rows one distance apart, and rows that are not."""
    seen = {}
    residual_gate = ada.OP.context("residual_gate").compose(native_in_torchs_order)
    x, packed = drawn(2, 6, 512).half(), drawn(2, 6, 512, seed=10).half()
    apart = drawn(6, 2, 1024, seed=10).half().transpose(0, 1)[..., :512]
    for formula, (name, residual, warps) in itertools.product(
        (ada.VLLM_OMNI, ada.WAN),
        (("one for all batches", packed, 2), ("token", packed, 4), ("frame-token", packed, 4), ("packed", apart, 2)),
    ):
        rounds = formula == ada.VLLM_OMNI
        scale, shift, gate = (part.half() if rounds else part for part in modulations(2, 6, 512)[name])
        args: dict[str, Any] = {"scale": scale, "shift": shift, "eps": EPS, "formula": formula}
        right = residual_gate(x=x, **args, residual=residual, gate=gate)
        got = launch_exact.exact_residual_modulated_layernorm(x, scale, shift, EPS, rounds, residual, gate, warps)
        seen[f"{formula} {name} after"] = all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
        alone = launch_exact.exact_modulated_layernorm(residual, scale, shift, EPS, rounds, warps)
        seen[f"{formula} {name} alone"] = torch.equal(alone, native_in_torchs_order(x=residual, **args))
    return seen


def affine_roundings() -> dict[str, bool]:
    """The same of the affine part, weights in x's dtype and in fp32."""
    seen = {}
    x = drawn(2, 3, 1024).half()
    for dtype, warps in itertools.product((torch.float16, torch.float32), WARPS):
        weight, bias = (1 + drawn(1024, seed=2)).to(dtype), drawn(1024, seed=3).to(dtype)
        right = (in_torchs_order(x) * weight.float() + bias.float()).half()
        seen[f"{dtype} {warps}"] = torch.equal(launch_exact.exact_layernorm(x, weight, bias, EPS, warps), right)
    return seen


def empty() -> list[list[int]]:
    x, none = torch.empty(0, 3, 512), torch.empty(0, 1, 512)
    residual = launch_exact.exact_residual_modulated_layernorm(x, none, none, EPS, True, x, none)
    return [list(launch_exact.exact_layernorm(x, None, None, EPS).shape), *(list(y.shape) for y in residual)]


if __name__ == "__main__":
    parts = (norms, order, roundings, affine_roundings, empty)
    print(json.dumps({part.__name__: part() for part in parts}))
