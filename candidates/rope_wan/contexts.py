"""Rotary embedding with its neighbours: q beside k, text beside image tokens, the pack before Ulysses' all-to-all.

Attention in diffusers, transformers and vllm-omni takes (B, S, H, D) or a permuted view of it, so after RoPE nothing
is copied for it, except where tokens are joined or packed.
"""

import torch
from torch import Tensor

from candidates.rope_wan.problem import ULYSSES_RANKS, activation, bytes_moved, drawn_tables, inputs, table_bytes
from harness.op import Args, Context, Draw, Impl
from harness.schema.case import Case

TEXT_TOKENS = 128


def _qk_inputs(case: Case, draw: Draw) -> Args:
    args = inputs(case, draw)
    q = args.pop("x")
    return {"q": q, "k": activation(case, draw, "k", heads=kv_heads(case)), **args}


def kv_heads(case: Case) -> int:
    """Heads of k; q has the case's H."""
    return case.dims["H"] // int(case.params["heads_per_kv"])


def _rotate_qk(impl: Impl) -> Impl:
    def rope_qk(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str
    ) -> tuple[Tensor, Tensor]:
        same = {"cos": cos, "sin": sin, "form": form, "pairs": pairs, "width": width}
        return impl(x=q, **same), impl(x=k, **same)

    return rope_qk


def _qk_bytes(case: Case) -> int:
    return bytes_moved(case) + 2 * case.numel // case.dims["H"] * kv_heads(case) * case.dtype.bytes


def text_tokens(case: Case) -> int:
    """Text tokens beside the case's image tokens; never more than those, so that a small twin stays small."""
    return min(TEXT_TOKENS, case.dims["S"])


def _joint_inputs(case: Case, draw: Draw) -> Args:
    tokens = text_tokens(case)
    cos_text, sin_text = drawn_tables(case, draw, "angle of text", tokens)
    text = activation(case, draw, "text", tokens=tokens)
    return {**inputs(case, draw), "text": text, "cos_text": cos_text, "sin_text": sin_text}


def _join(impl: Impl) -> Impl:
    def rope_joint(
        x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str,
        text: Tensor, cos_text: Tensor, sin_text: Tensor | None,
    ) -> Tensor:  # fmt: skip
        same = {"form": form, "pairs": pairs, "width": width}
        turned = impl(x=text, cos=cos_text, sin=sin_text, **same), impl(x=x, cos=cos, sin=sin, **same)
        return torch.cat(turned, dim=1)

    return rope_joint


def _joint_bytes(case: Case) -> int:
    tokens = text_tokens(case)
    text = 2 * case.numel // case.dims["S"] * tokens * case.dtype.bytes
    return bytes_moved(case) + text + table_bytes(case, tokens)


def _pack(impl: Impl) -> Impl:
    def rope_ulysses(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
        y: Tensor = impl(x=x, cos=cos, sin=sin, form=form, pairs=pairs, width=width)
        packed: Tensor = y.unflatten(2, (ULYSSES_RANKS, -1)).transpose(0, 2).contiguous()
        return packed

    return rope_ulysses


CONTEXTS = (
    Context(
        id="qk",
        what="RoPE of q and of k with the same tables, both as attention reads them: (B, S, H, D)",
        inputs=_qk_inputs,
        compose=_rotate_qk,
        bytes_moved=_qk_bytes,
    ),
    Context(
        id="joint",
        what=f"RoPE of image and of {TEXT_TOKENS} text tokens, each with its tables -> joined, text first",
        inputs=_joint_inputs,
        compose=_join,
        bytes_moved=_joint_bytes,
    ),
    Context(
        id="ulysses",
        what=f"RoPE -> heads packed by rank for the all-to-all over {ULYSSES_RANKS} ranks",
        inputs=inputs,
        compose=_pack,
        bytes_moved=bytes_moved,
    ),
)
