"""Run by test_layernorm.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json

import torch
import triton
import triton.language as tl
from torch import Tensor

from candidates.adalayernorm import inhouse as ada_inhouse
from candidates.adalayernorm import op as ada
from candidates.layernorm import inhouse, launch
from candidates.layernorm import op as ln
from candidates.layernorm.kernels.tile import group_offset

EPS = 1e-6


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs() -> dict[str, Tensor]:
    packed = drawn(2, 1, 3 * 512)
    return {f"width {d}": drawn(2, 1, d) for d in (1, 5, 33, 100, 512, 560, 1536, 2240, 5120)} | {
        "many rows": drawn(3, 23, 64),
        "two dims": drawn(3, 640),
        "sliced": packed[..., 512:1024],
        "transposed": drawn(2, 2, 516).transpose(0, 1),
        "strided last dim": drawn(2, 512, 2).transpose(1, 2),
        "size one with odd stride": drawn(4, 512).as_strided((1, 3, 512), (37, 512, 1)),
        "offset": drawn(1, 2, 1024) + 100,
    }


def norms() -> dict[str, dict[str, float]]:
    """Largest error against fp64, plain and affine."""
    seen = {}
    for name, x in inputs().items():
        weight, bias, before = 1 + drawn(x.shape[-1], seed=2), drawn(x.shape[-1], seed=3), x.clone()
        outputs = {"plain": launch.layernorm(x, None, None, EPS), "affine": launch.layernorm(x, weight, bias, EPS)}
        plain = ln.native(x.double(), None, None, EPS)
        affine = ln.native(x.double(), weight.double(), bias.double(), EPS)
        seen[name] = {
            kind: (y - (affine if "affine" in kind else plain)).abs().max().item() for kind, y in outputs.items()
        }
        assert torch.equal(x, before), name
        assert all(y.is_contiguous() for y in outputs.values()), name
    return seen


def modulations(b: int, s: int, d: int) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Scale, shift and gate of every granularity; the last ones are views of packed tensors, as models have them."""
    frame, token = drawn(b, 3, 1, d, seed=4), drawn(b, s, d, seed=5)
    chunks = drawn(b, 6, d, seed=6).chunk(6, dim=1)
    return {
        "batch-2d": (drawn(b, d, seed=7), drawn(b, d, seed=8), drawn(b, d, seed=9)),
        "batch": (drawn(b, 1, d, seed=7), drawn(b, 1, d, seed=8), drawn(b, 1, d, seed=9)),
        "one for all batches": (drawn(1, 1, d, seed=7), drawn(1, 1, d, seed=8), drawn(1, 1, d, seed=9)),
        "frame": (frame, frame.flip(1), frame * 2),
        "frame-token": (frame, token, frame * 2),
        "token": (token, token.flip(1), token * 2),
        "packed": (chunks[1], chunks[0], chunks[2]),
        "packed per token": tuple(drawn(b, s, 6, d, seed=6).unbind(2)[:3]),  # type: ignore[dict-item]
    }


def modulated() -> dict[str, dict[str, float]]:
    """Largest error against fp64 of AdaLayerNorm, alone and after a residual."""
    seen: dict[str, dict[str, float]] = {}
    for d in (96, 512, 1100):
        x, residual = drawn(2, 6, d), drawn(2, 6, d, seed=10).transpose(0, 1).contiguous().transpose(0, 1)
        for name, (scale, shift, gate) in modulations(2, 6, d).items():
            if d == 1100 and name not in ("one for all batches", "frame-token", "token"):
                continue
            context = ada.OP.context("residual_gate").compose(ada.native)
            doubled = {
                "x": x.double(),
                "scale": scale.double(),
                "shift": shift.double(),
                "eps": EPS,
                "formula": ada.WAN,
            }
            right = ada.native(**doubled)
            right_after, right_h = context(**doubled, residual=residual.double(), gate=gate.double())
            alone = [launch.modulated_layernorm(x, scale, shift, EPS)]
            after = [launch.residual_modulated_layernorm(x, scale, shift, EPS, residual, gate)]
            if d != 512:  # rows of x and of the residual equally far apart
                dense = residual.contiguous()
                after.append(launch.residual_modulated_layernorm(x, scale, shift, EPS, dense, gate))
            if d == 1100:
                plan = launch.Plan(rows=1, chunk=512, warps=4, first=False)
                alone.append(launch.modulated_layernorm(x, scale, shift, EPS, plan))
            seen[f"{name} {d}"] = {
                "alone": max((y - right).abs().max().item() for y in alone),
                "after": max((y - right_after).abs().max().item() for y, _ in after),
                "residual": max((h - right_h).abs().max().item() for _, h in after),
            }
    return seen


@triton.jit
def _offsets_kernel(out_ptr, b, s, s_b, s_g, TOKENS):
    batch = b + tl.arange(0, 2).to(tl.int64)
    tl.store(out_ptr + tl.arange(0, 2), group_offset(batch, s, s_b, s_g, TOKENS))


def offsets() -> list[int]:
    """Offsets of the modulation rows of token 2 * 10^9 of batches 5 and 6, 1000 tokens to a row."""
    out = torch.zeros(2, dtype=torch.int64)
    _offsets_kernel[(1,)](out, 5, 2_000_000_000, 1 << 40, 5120, 1000)
    return out.tolist()


def opcheck() -> dict[str, str]:
    results: dict[str, str] = {}
    scale, shift, gate = modulations(2, 6, 64)["batch"]
    x, residual = drawn(2, 6, 3 * 64)[..., 64:128], drawn(2, 6, 64, seed=2)
    for candidate, fake, args in (
        (inhouse.triton_layernorm, ln.fake, (x, scale[0, 0], shift[0, 0], EPS)),
        (inhouse.triton_layernorm, ln.fake, (x, None, None, EPS)),
        (ada_inhouse.triton_adalayernorm, ada.fake, (x, scale, shift, EPS, ada.WAN)),
        (
            ada_inhouse.triton_residual_adalayernorm,
            ada_inhouse.residual_fake,
            (x, scale, shift, EPS, ada.WAN, residual, gate),
        ),
    ):
        name = f"rehearsal::{candidate.name}_{len(results)}"
        custom = torch.library.custom_op(name, candidate.run, mutates_args=())
        custom.register_fake(fake)
        results |= {f"{name} {test}": result for test, result in torch.library.opcheck(custom, args).items()}
    return results


def empty() -> list[list[int]]:
    x, none, one = torch.empty(0, 3, 512), torch.empty(0, 1, 512), torch.ones(512)
    return [
        list(launch.layernorm(x, one, one, EPS).shape),
        list(launch.modulated_layernorm(x, none, none, EPS).shape),
    ]


if __name__ == "__main__":
    parts = (norms, modulated, offsets, opcheck, empty)
    print(json.dumps({part.__name__: part() for part in parts}))
