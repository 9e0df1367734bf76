"""QK-norm + RoPE candidates with the faults that were reported of such kernels. The gate must refuse each.

Each says what shows it: a convention, a batch, a layout, a second run.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from candidates.qknorm_rope.conventions import Pairs, Rounding, Table
from candidates.qknorm_rope.op import native
from candidates.qknorm_rope.tables import packed_qkv
from harness.op import Args, Candidate, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

_LARGE = 1024
"""Elements of q above which one behaves badly: the contract probe's twin stays below, the case is above."""


def _evil(**more: Any) -> Callable[[Callable[[Args], tuple[Tensor, Tensor]]], Candidate]:
    """A candidate called after the function below, which maps the op's arguments to its wrong result."""

    def declare(compute: Callable[[Args], tuple[Tensor, Tensor]]) -> Candidate:
        def run(
            q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
            across_heads: bool, pairs: str, table: str, rounding: str,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            args = {
                "q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin, "eps": eps,
                "across_heads": across_heads, "pairs": pairs, "table": table, "rounding": rounding,
            }  # fmt: skip
            new_q, new_k = compute(args)
            return new_q.clone(memory_format=torch.contiguous_format), new_k.clone(
                memory_format=torch.contiguous_format
            )

        return candidate(
            op="qknorm_rope",
            kind=Kind.TRITON,
            provider=EVIL,
            kernels=("never",),
            contract=Contract.TOLERANCE,
            name=compute.__name__,
            **more,
        )(run)

    return declare


def _in_place(compute: Callable[[Args], None]) -> Candidate:
    """A candidate called after the function below, which overwrites q and k."""

    def run(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float,
        across_heads: bool, pairs: str, table: str, rounding: str,
    ) -> None:  # fmt: skip
        compute(
            {
                "q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin, "eps": eps,
                "across_heads": across_heads, "pairs": pairs, "table": table, "rounding": rounding,
            }
        )  # fmt: skip

    return candidate(
        op="qknorm_rope",
        kind=Kind.TRITON,
        provider=EVIL,
        kernels=("never",),
        contract=Contract.TOLERANCE,
        mutates=("q", "k"),
        returns=("q", "k"),
        name=compute.__name__,
    )(run)


@_evil()
def honest(args: Args) -> tuple[Tensor, Tensor]:
    """Right; every other one's neighbour."""
    return native(**args)


@_in_place
def honest_in_place(args: Args) -> None:
    """Right, in place."""
    for name, value in zip("qk", native(**args), strict=True):
        args[name].copy_(value)


@_evil()
def other_interleaved_convention(args: Args) -> tuple[Tensor, Tensor]:
    """Reads cos[0::2] and sin[1::2] of a table of width R: the same where every value stands twice."""
    halves = {"cos": args["cos"][..., 0::2], "sin": args["sin"][..., 1::2], "table": Table.HALF}
    return native(**(args | halves))


@_evil()
def rotary_dim_not_passed(args: Args) -> tuple[Tensor, Tensor]:
    """Rotates all of a head, and takes what follows in memory for the rest of each table row."""
    half = args["q"].shape[-1] // 2
    rows = {}
    for name in ("cos", "sin"):
        flat = args[name].flatten()
        row = torch.arange(args[name].shape[-2])[:, None] * args[name].shape[-1]
        rows[name] = flat[(row + torch.arange(half)) % max(flat.numel(), 1)]
    return native(**(args | rows))


@_evil()
def always_interleaved(args: Args) -> tuple[Tensor, Tensor]:
    """Knows one kind of pairs."""
    return native(**(args | {"pairs": Pairs.INTERLEAVED}))


@_evil()
def half_split_table_of_interleaved_pairs(args: Args) -> tuple[Tensor, Tensor]:
    """Repeats a half table as (c0, c1, ..., c0, c1, ...) and rotates adjacent elements with it."""
    repeated = {name: torch.cat((args[name], args[name]), dim=-1) for name in ("cos", "sin")}
    return native(**(args | repeated | {"table": Table.FULL}))


@_evil()
def first_batch_for_all(args: Args) -> tuple[Tensor, Tensor]:
    """cos[0]: every batch gets the positions of the first."""
    if args["cos"].ndim == 2:
        return native(**args)
    return native(**(args | {"cos": args["cos"][0], "sin": args["sin"][0]})) if len(args["cos"]) else native(**args)


@_evil()
def positions_run_on_over_batches(args: Args) -> tuple[Tensor, Tensor]:
    """Numbers the tokens of all batches in one run: the second batch starts past the shared table's end."""
    batch, tokens = args["q"].shape[:2]
    row = torch.arange(batch * tokens).view(batch, tokens).clamp_max(tokens - 1)
    return native(**(args | {name: args[name][row] for name in ("cos", "sin")})) if args["cos"].ndim == 2 else native(
        **args
    )  # fmt: skip


@_evil()
def weights_crossed(args: Args) -> tuple[Tensor, Tensor]:
    """Norms k with the weight of q."""
    return native(**(args | {"k_weight": args["q_weight"][: args["k_weight"].numel()]}))


@_evil()
def outputs_crossed(args: Args) -> tuple[Tensor, Tensor]:
    """Returns (k, q): shapes cannot tell where there are as many heads of both."""
    q, k = native(**args)
    return k, q


@_evil()
def k_walks_with_the_stride_of_q(args: Args) -> tuple[Tensor, Tensor]:
    """Goes from token to token of k as far as in q: right in a packed qkv, where both are one row apart."""
    q, k = args["q"], args["k"]
    whole = k.as_strided((k.untyped_storage().nbytes() // k.element_size(),), (1,), 0)
    offsets = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(k.shape, (*q.stride()[:2], *k.stride()[2:]), strict=True):
        offsets = offsets[..., None] + torch.arange(size) * stride
    return native(**(args | {"k": whole[(k.storage_offset() + offsets) % max(whole.numel(), 1)]}))


@_evil()
def norms_each_head(args: Args) -> tuple[Tensor, Tensor]:
    """A per-head kernel at a model that norms all heads together, each head with its part of the weight."""
    if not args["across_heads"]:
        return native(**args)
    heads, kv_heads = args["q"].shape[2], args["k"].shape[2]
    ones = torch.ones(args["q"].shape[3], dtype=args["q"].dtype)
    alone = args | {"across_heads": False, "q_weight": ones, "k_weight": ones, "rounding": Rounding.NONE}
    scaled = {"q": args["q"], "k": args["k"]}
    q, k = native(**(alone | scaled))
    return q * args["q_weight"].view(heads, -1)[:, :1], k * args["k_weight"].view(kv_heads, -1)[:, :1]


@_evil()
def rotates_before_the_norm(args: Args) -> tuple[Tensor, Tensor]:
    """RoPE, then the norm: the weights then stand at other elements than those they belong to."""
    turned = _rope_alone(args)
    still = {name: torch.zeros_like(args[name]) for name in ("sin",)} | {"cos": torch.ones_like(args["cos"])}
    return native(**(args | {"q": turned[0], "k": turned[1]} | still))


def _rope_alone(args: Args) -> tuple[Tensor, Tensor]:
    """RoPE of what is not normed: native on unit weights, times the RMS that it divides by."""
    ones = torch.ones_like(args["q_weight"]), torch.ones_like(args["k_weight"])
    turned = native(**(args | {"q_weight": ones[0], "k_weight": ones[1]}))
    dims = (-2, -1) if args["across_heads"] else (-1,)
    rms = (args[name].float().square().mean(dims, keepdim=True).add(args["eps"]).sqrt() for name in "qk")
    q, k = ((x.float() * size).to(x.dtype) for x, size in zip(turned, rms, strict=True))
    return q, k


@_evil()
def more_kv_heads_than_there_are(args: Args) -> tuple[Tensor, Tensor]:
    """Writes as many heads of k as of q, token after token: each runs into the next token's rows."""
    q, k = native(**args)
    batch, tokens, kv_heads, head_dim = k.shape
    flat = torch.zeros(batch * tokens * kv_heads + q.shape[2], head_dim, dtype=k.dtype)
    for token in reversed(range(batch * tokens)):
        row = k.reshape(-1, kv_heads, head_dim)[token]
        flat[token * kv_heads : token * kv_heads + q.shape[2]] = row.repeat(q.shape[2] // kv_heads, 1)
    return q, flat[: batch * tokens * kv_heads].view(k.shape)


@_in_place
def more_kv_heads_into_v(args: Args) -> None:
    """In place on a packed qkv, right in q and k, but its loop over heads goes on into v."""
    packed = packed_qkv(args["q"], args["k"])
    for name, value in zip("qk", native(**args), strict=True):
        args[name].copy_(value)
    if packed is not None and packed.numel():
        width = (args["q"].shape[2] + args["k"].shape[2]) * args["q"].shape[3]
        packed[:, width:].mul_(1.5)


@_in_place
def reloads_what_it_stored(args: Args) -> None:
    """Stores the first elements of the pairs, then loads them again for the second ones."""
    _store_then_reload(args, late=True)


_calls = [0]


@_in_place
def reloads_what_it_may_have_stored(args: Args) -> None:
    """The same as a race: some runs load in time."""
    _calls[0] += args["q"].numel() > _LARGE
    _store_then_reload(args, late=args["q"].numel() > _LARGE and _calls[0] % 2 == 1)


def _store_then_reload(args: Args, late: bool) -> None:
    """One warp out of many is late: it takes the first token's stored values for loaded ones."""
    right = native(**args)
    if late:
        stale = [x.clone() for x in (args["q"], args["k"])]
        for x, y in zip(stale, right, strict=True):
            x[:, :1, :, ::2] = y[:, :1, :, ::2]
        wrong = native(**(args | {"q": stale[0], "k": stale[1]}))
        for x, y in zip(right, wrong, strict=True):
            x[:, :1, :, 1::2] = y[:, :1, :, 1::2]
    args["q"].copy_(right[0])
    args["k"].copy_(right[1])
