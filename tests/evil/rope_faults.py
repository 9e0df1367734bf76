"""Rotary embeddings with faults that were reported of public kernels. The gate must refuse each.

They are declared as Triton kernels: on a CPU they are gated as custom ops and never timed.
"""

import torch
from torch import Tensor

from candidates.rope_wan.op import native
from candidates.rope_wan.tables import halved
from harness.op import candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL


def _kernel(**more):  # type: ignore[no-untyped-def]
    return candidate(
        op="rope_wan", kind=Kind.TRITON, provider=EVIL, kernels=("never",), contract=Contract.TOLERANCE, **more
    )


@_kernel()
def honest(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Right; every other one's neighbour."""
    return native(x, cos, sin, form, pairs, width).contiguous()


@_kernel()
def first_batch_for_all(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """cos[0] for every sequence (vllm-omni 4043); a flattened cos with a 4-D x gives the same."""
    assert sin is not None
    if cos.ndim == 3:
        cos, sin = cos[:1], sin[:1]
    return native(x, cos, sin, form, pairs, width).contiguous()


@_kernel()
def runs_into_next_positions(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Positions that do not start anew for each sequence (exllama 101): past the end, the last row here."""
    assert sin is not None
    B, S = x.shape[:2]
    row = torch.arange(B * S).clamp_max(cos.shape[-2] - 1)
    flat = native(x.reshape(1, B * S, *x.shape[2:]), cos[..., row, :], sin[..., row, :], form, pairs, width)
    return flat.reshape(x.shape).contiguous()


@_kernel()
def other_pairs(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Interleaved rotation of a model of halves (sglang 30342), and the other way round."""
    assert sin is not None
    other = "halves" if pairs == "interleaved" else "interleaved"
    return native(x, *halved(cos, sin, pairs, width), "pair", other, "half").contiguous()


@_kernel()
def tables_of_other_pairs(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Right pairs, with full-width tables laid out for the other ones (transformers 47328)."""
    assert sin is not None
    columns = cos.shape[-1] // 2
    c, s = (cos[..., :columns], sin[..., :columns]) if pairs == "interleaved" else (cos[..., 0::2], sin[..., 0::2])
    return native(x, c, s, "pair", pairs, "half").contiguous()


@_kernel()
def same_columns(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Each element with its own column where the model reads cos[0::2] and sin[1::2] (TensorRT-LLM 13052)."""
    return native(x, cos, sin, "rotate_half", pairs, width).contiguous()


@_kernel()
def whole_head(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Turns all of a head of which only a part is to be turned, reading on into the tables' next rows (vllm 43676)."""
    assert sin is not None
    missing = x.shape[-1] // 2 - cos.shape[-1]
    c, s = (torch.cat((t, t.roll(-1, dims=-2)[..., :missing]), dim=-1) for t in (cos, sin))
    return native(x, c, s, form, pairs, width).contiguous()


@_kernel()
def forgets_the_rest(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Leaves what is not turned unwritten."""
    y = torch.zeros(x.shape, dtype=x.dtype)
    part = 2 * cos.shape[-1]
    y[..., :part] = native(x, cos, sin, form, pairs, width)[..., :part]
    return y


@_kernel()
def turns_back(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """The conjugate: the other direction."""
    assert sin is not None
    return native(x, cos, -sin, form, pairs, width).contiguous()


@_kernel()
def reads_what_it_wrote(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """The second elements from first ones that are stored already, as a store-reload race does (vllm 48872)."""
    assert sin is not None
    first = native(x, cos, sin, form, pairs, width)
    half = x.shape[-1] // 2
    mixed = torch.cat((first[..., :half], x[..., half:]), dim=-1)
    return torch.cat((first[..., :half], native(mixed, cos, sin, form, pairs, width)[..., half:]), dim=-1)


@_kernel()
def ignores_strides(x: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str) -> Tensor:
    """Walks a view of a packed qkv as if it were contiguous (ColossalAI 6444)."""
    return native(x.as_strided(x.shape, torch.empty(x.shape).stride()), cos, sin, form, pairs, width).contiguous()


def _both(q: Tensor, k: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype), torch.empty(k.shape, dtype=k.dtype)


@_kernel(context="qk", fake=_both)
def crosses_q_and_k(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor | None, form: str, pairs: str, width: str
) -> tuple[Tensor, Tensor]:
    """k's heads from q (ColossalAI 6444)."""
    y = native(q, cos, sin, form, pairs, width).contiguous()
    return y, y[:, :, : k.shape[2]].contiguous()
