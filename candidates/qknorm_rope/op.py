"""QK-RMSNorm followed by RoPE, for q and k of one attention; every convention of the models is an argument."""

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Rounding, Shapes, Table
from harness.op import Args, Context, Draw, Impl, Op
from harness.schema.case import Case, Dtype, Layout


def _norm(x: Tensor, weight: Tensor, eps: float, across_heads: bool, rounding: str) -> Tensor:
    acc = torch.promote_types(x.dtype, torch.float32)
    x_acc = x.to(acc)
    mean = x_acc.pow(2).mean(dim=(-2, -1) if across_heads else -1, keepdim=True)
    normed = x_acc * torch.rsqrt(mean + eps)
    if across_heads:
        weight = weight.view(x.shape[-2:])
    if rounding == Rounding.BEFORE_WEIGHT:
        return weight * normed.to(x.dtype)
    normed = weight.to(acc) * normed
    return normed if rounding == Rounding.NONE else normed.to(x.dtype)


def _rope(x: Tensor, cos: Tensor, sin: Tensor, pairs: str, table: str) -> Tensor:
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if table == Table.HALF and pairs == Pairs.INTERLEAVED:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    elif table == Table.HALF:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    rotary = x[..., : cos.shape[-1]]
    if pairs == Pairs.INTERLEAVED:
        turned = torch.stack((-rotary[..., 1::2], rotary[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = rotary.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    return rotary * cos + turned * sin


def _one(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, across_heads: bool, pairs: str, table: str,
    rounding: str,
) -> Tensor:  # fmt: skip
    normed = _norm(x, weight, eps, across_heads, rounding)
    rotated = _rope(normed, cos, sin, pairs, table).to(x.dtype)
    rest = normed[..., rotated.shape[-1] :].to(x.dtype)
    return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated


def native(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(q, k) normed and rotated, as vllm-omni's `RMSNorm` and `RotaryEmbedding.forward_native` in turn.

    q (B, S, H, D), k (B, S, KV, D) of any strides; weights (D,), or (H * D,) and (KV * D,) with `across_heads`; cos
    and sin (S, W) or (B, S, W), W as `table` says; rotation covers the first R <= D dims. `pairs`, `table` and
    `rounding` are values of `Pairs`, `Table` and `Rounding`. The norm accumulates in fp32 (fp64 for fp64 inputs); the
    rotation is done in the wider of the normed value's and the table's dtype.
    """
    conventions = (eps, across_heads, pairs, table, rounding)
    return _one(q, q_weight, cos, sin, *conventions), _one(k, k_weight, cos, sin, *conventions)


def fake(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
    across_heads: bool, pairs: str, table: str, rounding: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Contiguous, like q and k."""
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty(k.shape, dtype=k.dtype, device=k.device),
    )


def _heads(case: Case, draw: Draw, q_name: str, k_name: str, tokens: int) -> tuple[Tensor, Tensor]:
    """q and k in the case's layout; `sliced` are the views of one packed q|k|v."""
    of = Shapes.of(case)
    q_width, k_width = of.heads * of.head_dim, of.kv_heads * of.head_dim
    if case.layout is Layout.SLICED:
        packed = draw.activation(f"{q_name}|{k_name}|v", (of.batch, tokens, q_width + 2 * k_width))
        q, k, _ = packed.split((q_width, k_width, k_width), dim=-1)
        return q.unflatten(-1, (of.heads, of.head_dim)), k.unflatten(-1, (of.kv_heads, of.head_dim))
    return (
        draw.activation(q_name, (of.batch, tokens, of.heads, of.head_dim), case.layout),
        draw.activation(k_name, (of.batch, tokens, of.kv_heads, of.head_dim), case.layout),
    )


def _tables(case: Case, draw: Draw, cos_name: str, sin_name: str, tokens: int) -> tuple[Tensor, Tensor]:
    """cos and sin about N(0, 0.7²) each, unrelated: a swapped or shifted one shows."""
    of = Shapes.of(case)
    leading = (of.batch, tokens) if case.params["per_batch"] else (tokens,)
    width = of.rotary_dim if of.table is Table.FULL else of.rotary_dim // 2
    dtype = getattr(torch, str(case.params["table_dtype"]))
    cos, sin = (draw.weight(name, (*leading, width), scale=0.7, dtype=dtype) for name in (cos_name, sin_name))
    if of.table is Table.REPEATED and of.pairs is Pairs.INTERLEAVED:
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    if of.table is Table.REPEATED:
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    return cos, sin


def _weights(case: Case, draw: Draw, q_name: str, k_name: str) -> tuple[Tensor, Tensor]:
    """Norm weights about 1, as in trained checkpoints."""
    of = Shapes.of(case)
    q_heads, k_heads = (of.heads, of.kv_heads) if case.params["across_heads"] else (1, 1)
    return (
        draw.weight(q_name, (q_heads * of.head_dim,), loc=1.0, scale=0.2),
        draw.weight(k_name, (k_heads * of.head_dim,), loc=1.0, scale=0.2),
    )


def inputs(case: Case, draw: Draw) -> Args:
    """q and k of one attention, their norm weights and the rotation's tables."""
    q, k = _heads(case, draw, "q", "k", case.dims["S"])
    q_weight, k_weight = _weights(case, draw, "q_weight", "k_weight")
    cos, sin = _tables(case, draw, "cos", "sin", case.dims["S"])
    conventions = {name: case.params[name] for name in ("eps", "across_heads", "pairs", "table", "rounding")}
    return {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin} | conventions


def _bytes(case: Case, tokens: int) -> int:
    of = Shapes.of(case)
    activations = 2 * of.batch * tokens * (of.heads + of.kv_heads) * of.head_dim * case.dtype.bytes
    weights = (of.heads + of.kv_heads if case.params["across_heads"] else 2) * of.head_dim * case.dtype.bytes
    # Memory is read in sectors: the second copy of an interleaved table comes along, that of a half-split one need not
    halved = of.table is Table.HALF or (of.table is Table.REPEATED and of.pairs is Pairs.NEOX)
    entries = (of.batch if case.params["per_batch"] else 1) * tokens * (of.rotary_dim // 2 if halved else of.rotary_dim)
    return activations + weights + 2 * entries * Dtype(str(case.params["table_dtype"])).bytes


def bytes_moved(case: Case) -> int:
    """q and k once in and once out, weights and tables once."""
    return _bytes(case, case.dims["S"])


def check(case: Case) -> str | None:
    """Conventions must be known, heads must divide into groups, and the rotation must fit into a head."""
    for name, known in (("pairs", Pairs), ("table", Table), ("rounding", Rounding)):
        if case.params[name] not in list(known):
            return f"{name} is {case.params[name]!r}, choose from {', '.join(known)}"
    if case.params["table_dtype"] not in list(Dtype):
        return f"table_dtype is {case.params['table_dtype']!r}, choose from {', '.join(Dtype)}"
    heads, group = case.dims["H"], case.params["queries_per_kv"]
    if not isinstance(group, int) or group < 1 or heads % group:
        return f"H={heads} query heads do not divide into groups of queries_per_kv={group}"
    rotary = case.params["rotary_dim"]
    if not isinstance(rotary, int) or rotary < 2 or rotary % 2 or rotary > case.dims["D"]:
        return f"rotary_dim={rotary} is no even number up to D={case.dims['D']}"
    return None


def _bhsd(impl: Impl) -> Impl:
    def qknorm_rope_bhsd(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
        across_heads: bool, pairs: str, table: str, rounding: str,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k = impl(
            q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin, eps=eps, across_heads=across_heads,
            pairs=pairs, table=table, rounding=rounding,
        )  # fmt: skip
        return q.transpose(1, 2).contiguous(), k.transpose(1, 2).contiguous()

    return qknorm_rope_bhsd


def text_tokens(case: Case) -> int:
    """Text tokens of the joint context: as FLUX.1's 512 beside 4096 image tokens."""
    return -(-case.dims["S"] // 8)


def _joint_inputs(case: Case, draw: Draw) -> Args:
    tokens = text_tokens(case)
    text_q, text_k = _heads(case, draw, "text_q", "text_k", tokens)
    text_q_weight, text_k_weight = _weights(case, draw, "text_q_weight", "text_k_weight")
    text_cos, text_sin = _tables(case, draw, "text_cos", "text_sin", tokens)
    return inputs(case, draw) | {
        "text_q": text_q,
        "text_k": text_k,
        "text_q_weight": text_q_weight,
        "text_k_weight": text_k_weight,
        "text_cos": text_cos,
        "text_sin": text_sin,
    }


def _joint(impl: Impl) -> Impl:
    def qknorm_rope_joint(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
        across_heads: bool, pairs: str, table: str, rounding: str, text_q: Tensor, text_k: Tensor,
        text_q_weight: Tensor, text_k_weight: Tensor, text_cos: Tensor, text_sin: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        image = impl(
            q=q, k=k, q_weight=q_weight, k_weight=k_weight, cos=cos, sin=sin, eps=eps, across_heads=across_heads,
            pairs=pairs, table=table, rounding=rounding,
        )  # fmt: skip
        text = impl(
            q=text_q, k=text_k, q_weight=text_q_weight, k_weight=text_k_weight, cos=text_cos, sin=text_sin, eps=eps,
            across_heads=across_heads, pairs=pairs, table=table, rounding=rounding,
        )  # fmt: skip
        return torch.cat((text[0], image[0]), dim=1), torch.cat((text[1], image[1]), dim=1)

    return qknorm_rope_joint


def _joint_bytes(case: Case) -> int:
    return bytes_moved(case) + _bytes(case, text_tokens(case))


OP = Op(
    id="qknorm_rope",
    dims=(("B", "S", "H", "D"),),
    params={
        "eps": float,
        "queries_per_kv": int,
        "across_heads": bool,
        "pairs": str,
        "rotary_dim": int,
        "table": str,
        "table_dtype": str,
        "per_batch": bool,
        "rounding": str,
    },
    native=native,
    fake=fake,
    inputs=inputs,
    bytes_moved=bytes_moved,
    check=check,
    contexts=(
        Context(
            id="bhsd",
            what="QK-norm -> RoPE -> (B, H, S, D), the layout of SDPA",
            inputs=inputs,
            compose=_bhsd,
            bytes_moved=bytes_moved,
        ),
        Context(
            id="joint",
            what="QK-norm -> RoPE of image and of text tokens (an eighth) -> cat(text, image), as double-stream blocks",
            inputs=_joint_inputs,
            compose=_joint,
            bytes_moved=_joint_bytes,
            scratch=("text_q", "text_k"),
        ),
    ),
)
