"""Run by test_qknorm_rope.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
from typing import Any

import torch
from torch import Tensor

from candidates.qknorm_rope import inhouse, launch
from candidates.qknorm_rope.op import OP, native
from harness.measure.inputs import SeededDraw
from harness.op import Args
from harness.schema.case import Case, Layout
from tests.candidates.qknorm_rope_cases import case

CPU = torch.device("cpu")
NEOX = {"pairs": "neox"}
CASES: dict[str, Case] = {
    "half table": case(),
    "repeated table": case(table="repeated"),
    "full table": case(table="full"),
    "per batch": case(per_batch=True, table="full"),
    "partial rotation": case(rotary_dim=12),
    "partial rotation, full table": case(rotary_dim=12, table="full"),
    "neox": case(**NEOX),
    "neox, repeated table": case(table="repeated", **NEOX),
    "neox, full table": case(table="full", per_batch=True, **NEOX),
    "neox, partial rotation": case(rotary_dim=12, **NEOX),
    "neox, partial rotation, full table": case(rotary_dim=12, table="full", **NEOX),
    "grouped heads, packed": case(H=8, queries_per_kv=4, layout=Layout.SLICED, **NEOX),
    "three heads of twelve": case(H=12, queries_per_kv=4, S=3),
    "five heads": case(B=1, H=5, S=7),
    "head of no power of two": case(D=20, H=3, rotary_dim=20, **NEOX),
    "head of no power of two, interleaved": case(D=20, H=3, rotary_dim=8),
    "transposed": case(layout=Layout.TRANSPOSED),
    "channels last": case(layout=Layout.CHANNELS_LAST),
    "odd stride": case(B=1, H=1, layout=Layout.ODD_STRIDE),
    "across heads": case(across_heads=True, S=2),
    "across twelve heads, packed": case(across_heads=True, H=12, S=2, layout=Layout.SLICED, table="repeated"),
    "across heads, grouped": case(across_heads=True, H=6, queries_per_kv=2, S=2, rotary_dim=12, **NEOX),
    "across heads, transposed": case(across_heads=True, H=3, S=2, layout=Layout.TRANSPOSED, per_batch=True),
    "one wide head": case(H=1, D=256, S=2, table="repeated"),
}


def args_of(one: Case) -> Args:
    return OP.inputs(one, SeededDraw(1, torch.float32, CPU))


def error(outputs: tuple[Tensor, Tensor], args: Args) -> float:
    oracle = native(**{n: v.double() if isinstance(v, Tensor) else v for n, v in args.items()})
    return max((y - right).abs().max().item() for y, right in zip(outputs, oracle, strict=True))


def numerics() -> dict[str, Any]:
    seen = {}
    for name, one in CASES.items():
        args = args_of(one)
        before = {n: v.clone() for n, v in args.items() if isinstance(v, Tensor)}
        outputs = inhouse.triton_qknorm_rope.run(**args)
        seen[name] = {
            "error": error(outputs, args),
            "contiguous": all(y.is_contiguous() for y in outputs),
            "inputs_kept": all(torch.equal(args[n], v) for n, v in before.items()),
        }
    return seen


def by_token() -> dict[str, float]:
    """Errors where a program takes all heads of a token, each normed by itself: as with many tokens."""
    wanted, launch.WANTED_PROGRAMS = launch.WANTED_PROGRAMS, 1
    cases = {name: one for name, one in CASES.items() if not one.params["across_heads"]}
    try:
        return {
            name: error(inhouse.triton_qknorm_rope.run(**args_of(one)), args_of(one)) for name, one in cases.items()
        }
    finally:
        launch.WANTED_PROGRAMS = wanted


def contexts() -> dict[str, float]:
    seen = {}
    for name, candidate in (("bhsd", inhouse.triton_qknorm_rope_bhsd), ("joint", inhouse.triton_qknorm_rope_joint)):
        context = OP.context(name)
        for label in ("half table", "grouped heads, packed", "across heads, grouped"):
            args = context.inputs(CASES[label], SeededDraw(2, torch.float32, CPU))
            wanted = context.compose(native)(**args)
            pairs = zip(candidate.run(**args), wanted, strict=True)
            seen[f"{name}: {label}"] = max((y - right).abs().max().item() for y, right in pairs)
    return seen


def beyond_int32() -> dict[str, float]:
    """Strides past 2^31 elements between batches, tokens, heads and elements; memory in between is never touched."""
    far = (1 << 31) + 16
    heads, width = 2, 16
    seen = {}
    for name, shape, strides in (
        ("batch", (2, 1, heads, width), (far, width * heads, width, 1)),
        ("token", (1, 2, heads, width), (far, far, width, 1)),
        ("head", (1, 1, heads, width), (far, far, far, 1)),
        ("element", (1, 1, 1, width), (1, 1, 1, far // 8)),
    ):
        size = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        x = torch.empty(size, dtype=torch.float16).as_strided(shape, strides)
        x.copy_(torch.randn(shape))
        weight, table = torch.randn(width).half(), torch.randn(shape[1], width // 2)
        tensors = {"q": x, "k": x, "q_weight": weight, "k_weight": weight, "cos": table, "sin": table.flip(-1)}
        conventions = {"eps": 1e-6, "across_heads": False, "pairs": "interleaved", "table": "half"}
        args = tensors | conventions
        y = launch.qknorm_rope(**args)
        seen[f"from {name}"] = error(y, args | {"rounding": "none"})
        if strides[3] == 1:
            out = torch.empty(size, dtype=torch.float16).as_strided(shape, strides)
            launch.qknorm_rope_into(out, torch.empty(shape, dtype=torch.float16), **(args | {"q": x.contiguous()}))
            seen[f"to {name}"] = (out - y[0]).abs().max().item()
    return seen


def opcheck() -> dict[str, str]:
    results: dict[str, str] = {}
    for candidate, context in (
        (inhouse.triton_qknorm_rope, None),
        (inhouse.triton_qknorm_rope_bhsd, "bhsd"),
        (inhouse.triton_qknorm_rope_joint, "joint"),
    ):
        custom = torch.library.custom_op(f"rehearsal::{candidate.name}", candidate.run, mutates_args=())
        custom.register_fake(candidate.fake or OP.fake)
        source = OP.context(context) if context else OP
        args = source.inputs(CASES["grouped heads, packed"], SeededDraw(3, torch.float32, CPU))
        names = [a.name for a in getattr(torch.ops.rehearsal, candidate.name).default._schema.arguments]
        tests = ("test_schema", "test_faketensor")
        checked = torch.library.opcheck(custom, tuple(args[name] for name in names), test_utils=tests)
        results |= {f"{candidate.name} {test}": result for test, result in checked.items()}
    return results


if __name__ == "__main__":
    empty = [list(y.shape) for y in inhouse.triton_qknorm_rope.run(**args_of(case(S=4).model_copy(
        update={"dims": {"B": 0, "S": 4, "H": 4, "D": 16}})))]  # fmt: skip
    parts = {part.__name__: part() for part in (numerics, by_token, contexts, beyond_int32, opcheck)}
    print(json.dumps(parts | {"empty": empty}))
