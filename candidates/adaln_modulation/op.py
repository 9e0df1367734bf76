"""adaLN modulation and its gate: x * (1 + scale) + shift behind a norm, residual + x * gate behind attention and MLP.

LayerNorm lies outside, in the contexts: that is the split which loses Inductor's fusion. How tables of scale, shift and
gate are laid out differs by model and is a case's `params`: see `Per`.
"""

from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from candidates._dense import empty_dense_like
from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case

LAYERNORM_EPS = 1e-6


class Form(StrEnum):
    """What is computed."""

    SCALE_SHIFT = "scale_shift"
    """x * (scale_constant + scale) + shift."""
    SCALE = "scale"
    """x * (scale_constant + scale)."""
    GATE = "gate"
    """residual + x * (scale_constant + scale), the constant being 0 and the scale a gate."""


class Per(StrEnum):
    """What has a row of a table of its own, and the table's shape; x is (B, S, D)."""

    BATCH_2D = "batch_2d"
    """(B, D)."""
    BATCH = "batch"
    """(B, 1, D)."""
    FRAME = "frame"
    """(B, F, 1, D): each of F runs of S / F tokens."""
    TOKEN = "token"
    """(B, S, D)."""
    INDEX = "index"
    """(rows, D), and an index (T,) that names the row of each token of x (T, D)."""
    NONE = "none"
    """There is no shift."""


def _against(table: Tensor, frames: int, index: Tensor | None) -> Tensor:
    """A table so that it broadcasts against x (B, S, D), or against x (B, F, S / F, D) when there are frames."""
    if index is not None:
        return table.index_select(0, index)
    if table.ndim == 2:
        table = table[:, None]
    if frames and table.ndim == 3:
        return table[:, None] if table.shape[1] == 1 else table.unflatten(1, (frames, -1))
    return table


def native(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """x * (scale_constant + scale) + shift, or residual + x * scale; x (B, S, D) or (T, D), tables as `Per` says.

    As the models write it: 16-bit tables round after each step, fp32 ones (Wan's) lift the arithmetic to fp32, and
    `upcast` lifts 16-bit ones (ERNIE-Image's); rounded to x's dtype at the end.
    """
    acc = torch.promote_types(x.dtype, torch.float32)
    frames = next((table.shape[1] for table in (scale, shift) if table is not None and table.ndim == 4), 0)
    operand = x.unflatten(1, (frames, -1)) if frames else x
    factor = _against(scale, frames, index)
    offset = None if shift is None else _against(shift, frames, index)
    if upcast:
        operand, factor = operand.to(acc), factor.to(acc)
        offset = None if offset is None else offset.to(acc)
    if scale_constant:
        factor = scale_constant + factor
    y = operand * factor
    y = y if offset is None else y + offset
    y = y.flatten(1, 2) if frames else y
    return (y if residual is None else residual + y).to(x.dtype)


def fake(
    x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
    scale_constant: int, upcast: bool,
) -> Tensor:  # fmt: skip
    """Like x, strides included."""
    return empty_dense_like(x)


def _table(case: Case, draw: Draw, name: str, per: Per) -> Tensor:
    """One of `chunks` chunks of a wider table, as the output of one linear layer or of a sum is split."""
    rows, chunks, width = int(case.params["rows"]), int(case.params["chunks"]), case.dims["D"]
    batch, tokens = (1, *case.shape[:-1])[-2:]
    leading = {
        Per.BATCH_2D: (batch,),
        Per.BATCH: (batch,),
        Per.FRAME: (batch, rows),
        Per.TOKEN: (batch, tokens),
        Per.INDEX: (rows,),
    }[per]
    dtype = getattr(torch, str(case.params["table"]))
    whole = draw.weight(name, (*leading, chunks, width), scale=0.5, dtype=dtype)
    chunk = whole[..., chunks - 1, :]
    return chunk[..., None, :] if per in (Per.BATCH, Per.FRAME) else chunk


def _index(case: Case, draw: Draw) -> Tensor | None:
    """Runs of eight tokens share a row, the rows in no order."""
    if case.params["scale_per"] != Per.INDEX:
        return None
    tokens = torch.arange(case.dims["T"], device=draw.device, dtype=torch.int64)
    return tokens // 8 * 5 % int(case.params["rows"])


def inputs(case: Case, draw: Draw) -> Args:
    """x and the residual in the case's layout; tables about 0, as trained modulations are."""
    shift_per = Per(str(case.params["shift_per"]))
    gated = case.params["form"] == Form.GATE
    return {
        "x": draw.activation("x", case.shape, case.layout),
        "scale": _table(case, draw, "scale", Per(str(case.params["scale_per"]))),
        "shift": None if shift_per is Per.NONE else _table(case, draw, "shift", shift_per),
        "residual": draw.activation("residual", case.shape, case.layout) if gated else None,
        "index": _index(case, draw),
        "scale_constant": case.params["scale_constant"],
        "upcast": case.params["upcast"],
    }


def _table_rows(case: Case, per: Per) -> int:
    rows, batch = int(case.params["rows"]), 1 if "T" in case.dims else case.dims["B"]
    counts = {Per.FRAME: batch * rows, Per.TOKEN: case.numel // case.dims["D"], Per.INDEX: rows, Per.NONE: 0}
    return counts.get(per, batch)


def _tables_bytes(case: Case) -> int:
    pers = [Per(str(case.params[name])) for name in ("scale_per", "shift_per")]
    itemsize: int = getattr(torch, str(case.params["table"])).itemsize
    index = 8 * case.dims["T"] if Per.INDEX in pers else 0
    return sum(_table_rows(case, per) for per in pers) * case.dims["D"] * itemsize + index


def bytes_moved(case: Case) -> int:
    """x, the residual and the tables' chunks once in, y once out."""
    activations = 3 if case.params["form"] == Form.GATE else 2
    return activations * case.numel * case.dtype.bytes + _tables_bytes(case)


def check(case: Case) -> str | None:
    """Tables must fit x, the form and each other; a context must fit the form."""
    words = {"form": Form, "scale_per": Per, "shift_per": Per}
    for name, known in words.items():
        if case.params[name] not in list(known):
            return f"{name} is {case.params[name]!r}; write one of {', '.join(known)}"
    if case.params["table"] not in ("bfloat16", "float16", "float32"):
        return f"table is {case.params['table']!r}; write bfloat16, float16 or float32"
    form = Form(str(case.params["form"]))
    scale_per, shift_per = (Per(str(case.params[name])) for name in ("scale_per", "shift_per"))
    if scale_per is Per.NONE:
        return "scale_per is none, and there is always a scale"
    if (form is Form.SCALE_SHIFT) == (shift_per is Per.NONE):
        return f"form {form} and shift_per {shift_per} contradict each other"
    if form is Form.GATE and case.params["scale_constant"] != 0:
        return "a gate has scale_constant 0"
    indexed = {scale_per, shift_per} - {Per.NONE}
    if (indexed == {Per.INDEX}) != ("T" in case.dims) or (Per.INDEX in indexed and len(indexed) > 1):
        return "x (T, D) goes with tables per index alone, and they with it"
    if Per.FRAME in indexed and case.dims["S"] % max(int(case.params["rows"]), 1):
        return f"S={case.dims['S']} tokens do not divide into rows={case.params['rows']} frames"
    wanted = "gate_layernorm" if form is Form.GATE else "layernorm"
    if wrong := [context for context in case.contexts if context != wanted]:
        return f"context {wrong[0]} is not for form {form}"
    return None


def _layernorm(x: Tensor) -> Tensor:
    """vllm-omni's LayerNorm without affine part: fp32 inside, rounded to x's dtype."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.layer_norm(wide, (x.shape[-1],), eps=LAYERNORM_EPS).to(x.dtype)


def _after_layernorm(impl: Impl) -> Impl:
    def layernorm_modulate(
        x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
        scale_constant: int, upcast: bool,
    ) -> Tensor:  # fmt: skip
        y: Tensor = impl(
            x=_layernorm(x), scale=scale, shift=shift, residual=residual, index=index,
            scale_constant=scale_constant, upcast=upcast,
        )  # fmt: skip
        return y

    return layernorm_modulate


def _gate_inputs(case: Case, draw: Draw) -> Args:
    per = Per(str(case.params["scale_per"]))
    following = {name: _table(case, draw, name, per) for name in ("next_scale", "next_shift")}
    return inputs(case, draw) | following


def _gate_then_modulate(impl: Impl) -> Impl:
    def gate_layernorm_modulate(
        x: Tensor, scale: Tensor, shift: Tensor | None, residual: Tensor | None, index: Tensor | None,
        scale_constant: int, upcast: bool, next_scale: Tensor, next_shift: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h = impl(
            x=x, scale=scale, shift=shift, residual=residual, index=index, scale_constant=scale_constant, upcast=upcast
        )
        # a neighbour, as the LayerNorm is: what computes gates alone can be tried here, and Inductor fuses the two
        y = native(
            x=_layernorm(h), scale=next_scale, shift=next_shift, residual=None, index=index, scale_constant=1,
            upcast=upcast,
        )  # fmt: skip
        return y, h

    return gate_layernorm_modulate


def _gate_bytes(case: Case) -> int:
    """Once more y, and two more tables."""
    return bytes_moved(case) + case.numel * case.dtype.bytes + 2 * _tables_bytes(case)


OP = Op(
    id="adaln_modulation",
    dims=(("T", "D"), ("B", "S", "D")),
    params={
        "form": str, "scale_per": str, "shift_per": str, "rows": int, "chunks": int, "table": str,
        "scale_constant": int, "upcast": bool,
    },
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="layernorm",
            what="LayerNorm without affine part -> modulation, the input of the next linear layer",
            inputs=inputs,
            compose=_after_layernorm,
            bytes_moved=bytes_moved,
        ),
        Context(
            id="gate_layernorm",
            what="h = residual + x * gate -> LayerNorm without affine part -> modulation; that and h returned",
            inputs=_gate_inputs,
            compose=_gate_then_modulate,
            bytes_moved=_gate_bytes,
        ),
    ),
)  # fmt: skip
