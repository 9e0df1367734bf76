"""Run by test_rope_wan.py with TRITON_INTERPRET=1; prints what it saw as JSON."""

import json
from typing import Any

import torch
from torch import Tensor

from candidates.rope_wan import inhouse, launch
from candidates.rope_wan.contexts import CONTEXTS
from candidates.rope_wan.launch import Plan
from candidates.rope_wan.op import OP, native
from harness.measure.inputs import SeededDraw
from harness.op import Args, Candidate
from harness.schema.case import Case, Layout
from tests.candidates.rope_cases import FORMS, rope_case

L = Layout


def drawn(case: Case, context: str | None = None) -> Args:
    return (OP.context(context) if context else OP).inputs(case, SeededDraw(0, torch.float32, torch.device("cpu")))


def error(got: Tensor | tuple[Tensor, ...], args: Args, context: str | None) -> float:
    upcast = {name: y.double() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in args.items()}
    right = (OP.context(context).compose(native) if context else native)(**upcast)
    pairs = zip(*(y if isinstance(y, tuple) else (y,) for y in (got, right)), strict=True)
    return max((a - b).abs().max().item() if a.numel() else 0.0 for a, b in pairs)


def compare(case: Case, candidate: Candidate) -> dict[str, Any]:
    args = drawn(case, candidate.context)
    before = args["q" if "q" in args else "x"].clone()
    out = candidate.run(**args)
    return {
        "error": error(out, args, candidate.context),
        "contiguous": all(y.is_contiguous() for y in (out if isinstance(out, tuple) else (out,))),
        "input_kept": torch.equal(args["q" if "q" in args else "x"], before),
    }


def alone() -> dict[str, Any]:
    cases = {name: rope_case(B=2, S=3, H=7, D=24, **form) for name, form in FORMS.items()}
    cases |= {f"layout {layout}": rope_case(layout=layout) for layout in Layout}
    cases |= {f"layout {layout}, halves": rope_case(pairs="halves", layout=layout) for layout in Layout}
    for pairs in ("interleaved", "halves"):
        cases[f"{pairs}, part of a head"] = rope_case(pairs=pairs, rotary_dim=12, D=40)
        cases[f"{pairs}, part of a head, full width"] = rope_case(pairs=pairs, form="rotate_half", width="full",
                                                                 rotary_dim=10, D=16)  # fmt: skip
    cases["one wide head"] = rope_case(B=1, S=3, H=1, D=2048, width="full", positions="per_batch")
    cases["one token"] = rope_case(B=1, S=1, H=32, D=128, pairs="halves")
    cases["many tokens"] = rope_case(B=1, S=70, H=3, D=64)
    cases["empty"] = rope_case(B=2, S=3, H=4, D=16).model_copy(update={"dims": {"B": 0, "S": 3, "H": 4, "D": 16}})
    return {name: compare(case, inhouse.triton_rope) for name, case in cases.items()}


def in_context() -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name, form in FORMS.items():
        if form.get("positions") != "per_head":
            case = rope_case(B=2, S=5, H=8, D=16, heads_per_kv=4, **form)
            seen[f"qk {name}"] = compare(case, inhouse.triton_rope_qk)
        if name not in ("wan", "complex", "qwen3", "ltx2"):
            continue
        seen[f"joint {name}"] = compare(rope_case(B=2, S=5, H=3, D=16, **form), inhouse.triton_rope_joint)
        seen[f"ulysses {name}"] = compare(rope_case(B=2, S=5, H=12, D=16, **form), inhouse.triton_rope_packed)
    seen["qk sliced"] = compare(rope_case(layout=L.SLICED), inhouse.triton_rope_qk)
    seen["qk of three heads each"] = compare(rope_case(B=1, S=9, H=3, D=32), inhouse.triton_rope_qk)
    return seen


def plans() -> dict[str, float]:
    """Tiles that make_plan does not choose, on shapes that no number of tokens divides; heads share tables or not."""
    forms = ("wan, positions of each batch", "wan of diffusers", "qwen3", "complex")
    seen = {}
    for name in forms:
        args = drawn(rope_case(B=2, S=5, H=6, D=24, **FORMS[name]))
        for tokens, heads in ((1, 6), (2, 1), (2, 3), (4, 2), (8, 1)):
            out = launch.rope(**args, plan=Plan(tokens, heads, warps=1))
            seen[f"{name}, {tokens} x {heads}"] = error(out, args, None)
    args = drawn(rope_case(B=2, S=5, H=6, D=24, heads_per_kv=2, rotary_dim=12, width="full"), "qk")
    seen["q and k, 2 x 3"] = error(launch.rope_qk(**args, plan=Plan(2, 3, warps=1)), args, "qk")
    return seen


def rounding() -> dict[str, int]:
    """Elements that differ from native: of bf16 values held in fp32, where nothing rounds, and of fp16."""
    args = drawn(rope_case(B=1, S=40, H=4, D=64, table_dtype="float32"))
    args = {name: y.bfloat16().float() if isinstance(y, Tensor) else y for name, y in args.items()}
    half = drawn(rope_case(B=1, S=40, H=4, D=64, table_dtype="float32"))
    many = drawn(rope_case(B=2, S=9, H=26, D=16, width="full"))  # heads share what wide tables give
    half["x"], many["x"] = half["x"].half(), many["x"].half()
    return {
        name: int((inhouse.triton_rope.run(**given) != native(**given)).sum())
        for name, given in (("fp32", args), ("fp16", half), ("fp16, wide tables", many))
    }


def far_apart() -> dict[str, int]:
    """Tokens 2^30 elements apart, in memory that is never touched between them: the last is past 32-bit offsets."""
    args = drawn(rope_case(B=1, S=3, H=2, D=16))
    far = torch.empty((1 << 31) + 4096, dtype=torch.float16).as_strided((1, 3, 2, 16), (64, (1 << 30) + 512, 16, 1))
    args["x"] = far.copy_(args["x"])
    return {"differ": int((inhouse.triton_rope.run(**args) != native(**args)).sum())}


def opcheck() -> dict[str, str]:
    results: dict[str, str] = {}
    for candidate in (value for value in vars(inhouse).values() if isinstance(value, Candidate)):
        op = torch.library.custom_op(f"rehearsal::{candidate.name}", candidate.run, mutates_args=())
        op.register_fake(candidate.fake or OP.fake)
        for name in ("wan", "complex") if candidate.context is None else ("wan",):
            args = drawn(rope_case(B=2, S=4, H=4, D=16, **FORMS[name]), candidate.context)
            checked = torch.library.opcheck(op, (), args)
            results |= {f"{candidate.name} {name} {test}": result for test, result in checked.items()}
    return results


if __name__ == "__main__":
    assert {context.id for context in CONTEXTS} == {"qk", "joint", "ulysses"}
    print(
        json.dumps(
            {
                "alone": alone(),
                "in_context": in_context(),
                "plans": plans(),
                "rounding": rounding(),
                "far apart": far_apart(),
                "opcheck": opcheck(),
            }
        )
    )
