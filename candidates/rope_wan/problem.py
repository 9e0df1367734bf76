"""What a case of rotary embedding is: its inputs, its bytes, and what makes it impossible."""

from enum import StrEnum

import torch
from torch import Tensor

from candidates.rope_wan.tables import Form, Pairs, Positions, Width
from harness.op import Args, Draw
from harness.schema.case import Case, Dtype, Layout

ULYSSES_RANKS = 4
"""Ranks that context `ulysses` packs heads for."""
_CHOICES: dict[str, type[StrEnum]] = {
    "form": Form,
    "pairs": Pairs,
    "width": Width,
    "table_dtype": Dtype,
    "positions": Positions,
}


def problem(case: Case) -> str | None:
    """A sentence that says why the case is impossible, or None."""
    for name, choices in _CHOICES.items():
        known = [str(choice) for choice in choices]
        if case.params[name] not in known:
            return f"`{name}` is {case.params[name]!r}, choose one of {', '.join(known)}"
    rotary_dim, D = rotary_dim_of(case), case.dims["D"]
    if rotary_dim % 2 or not 0 < rotary_dim <= D:
        return f"`rotary_dim` is {rotary_dim}; it must be even and not above D={D}"
    if case.params["form"] == Form.COMPLEX:
        wanted = {"pairs": Pairs.INTERLEAVED, "width": Width.HALF, "table_dtype": Dtype.FP32, "rotary_dim": D}
        for name, value in wanted.items():
            if case.params[name] != value:
                return f"the complex form has complex64 tables over whole heads: `{name}` must be {value}"
    if (case.params["form"], case.params["width"]) == (Form.PAIR, Width.FULL) and case.params["pairs"] == Pairs.HALVES:
        return "the pair form reads full-width tables by even and odd columns, which halves do not have"
    heads_per_kv = int(case.params["heads_per_kv"])
    if heads_per_kv < 1 or ("qk" in case.contexts and case.dims["H"] % heads_per_kv):
        return f"`heads_per_kv` is {heads_per_kv}; it must be at least 1 and divide the H={case.dims['H']} heads of q"
    if "ulysses" in case.contexts and case.dims["H"] % ULYSSES_RANKS:
        return f"H={case.dims['H']} heads do not go to {ULYSSES_RANKS} ranks"
    return None


def rotary_dim_of(case: Case) -> int:
    """R, the elements of each head that are rotated."""
    return int(case.params["rotary_dim"])


def activation(case: Case, draw: Draw, name: str, *, tokens: int | None = None, heads: int | None = None) -> Tensor:
    """(B, S, H, D) in the case's layout; sliced is what a packed qkv gives, all heads of q beside those of k and v."""
    B, S, H, D = case.shape
    S, H = S if tokens is None else tokens, H if heads is None else heads
    if case.layout is Layout.SLICED:
        return draw.activation(name, (B, S, H * D), case.layout).view(B, S, H, D)
    return draw.activation(name, (B, S, H, D), case.layout)


def drawn_tables(
    case: Case, draw: Draw, name: str = "angle", tokens: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """cos and sin of drawn angles, in the form, width, dtype and shape of the case.

    From t = tan(angle/2), about N(0, 1): cos = (1-t²)/(1+t²) and sin = 2t/(1+t²) are exactly rounded operations, so
    the bytes do not depend on the device, as a library's cos and sin would. Full-width tables of `rotate_half` repeat
    every value, as the models' do; those of `pair` do not, since the formula says which columns it reads.
    """
    B, S, H, _ = case.shape
    S = S if tokens is None else tokens
    leading = {Positions.SHARED: (S,), Positions.PER_BATCH: (B, S), Positions.PER_HEAD: (B, H, S)}
    pairs = rotary_dim_of(case) // 2
    distinct = case.params["form"] == Form.PAIR and case.params["width"] == Width.FULL
    shape = (*leading[Positions(str(case.params["positions"]))], pairs * (2 if distinct else 1))
    t = draw.weight(name, shape, dtype=torch.float32)
    square = t * t
    cos, sin = (1 - square) / (1 + square), (t + t) / (1 + square)
    if case.params["form"] == Form.COMPLEX:
        return torch.view_as_complex(torch.stack((cos, sin), dim=-1)), None
    if case.params["width"] == Width.FULL and not distinct:
        interleaved = case.params["pairs"] == Pairs.INTERLEAVED
        cos, sin = (y.repeat_interleave(2, dim=-1) if interleaved else torch.cat((y, y), dim=-1) for y in (cos, sin))
    dtype: torch.dtype = getattr(torch, str(case.params["table_dtype"]))
    return cos.to(dtype), sin.to(dtype)


def conventions(case: Case) -> Args:
    """The scalar arguments: which formula, which pairs, which width of tables."""
    return {name: str(case.params[name]) for name in ("form", "pairs", "width")}


def inputs(case: Case, draw: Draw) -> Args:
    """x in the case's layout and the tables."""
    cos, sin = drawn_tables(case, draw)
    return {"x": activation(case, draw, "x"), "cos": cos, "sin": sin, **conventions(case)}


def table_bytes(case: Case, tokens: int | None = None) -> int:
    """Bytes of cos and sin together."""
    B, S, H, _ = case.shape
    rows = S if tokens is None else tokens
    if case.params["positions"] != Positions.SHARED:
        rows *= B * (H if case.params["positions"] == Positions.PER_HEAD else 1)
    columns = rotary_dim_of(case) * (2 if case.params["width"] == Width.FULL else 1)
    return rows * columns * Dtype(str(case.params["table_dtype"])).bytes


def bytes_moved(case: Case) -> int:
    """x once in, y once out, and the tables."""
    return 2 * case.numel * case.dtype.bytes + table_bytes(case)
