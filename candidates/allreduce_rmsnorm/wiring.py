"""All-reduce, residual add and RMSNorm as one call in Qwen3-Omni's thinker, split over ranks by `wiring_shards.shard`.

Attention and experts hand on their partial sums unreduced, and the layers hand each other (partial sum, residual), as
RMSNorm's own wiring with the residual add does: the sum over the ranks is taken with the norm that follows it, the
next layer's first one or the model's last. The first norm of all follows no all-reduce and stays.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

from torch import Tensor, nn

from candidates.allreduce_rmsnorm.op import OP
from candidates.allreduce_rmsnorm.wiring_shards import group_of, row_parallel, shard
from candidates.rmsnorm import wiring_residual
from candidates.rmsnorm.rounding import ONCE
from harness.op import Impl
from harness.wiring import Described, Wiring, replaced

Pair = tuple[Tensor, Tensor]


@contextmanager
def apply(model: nn.Module, implementation: Impl) -> Iterator[None]:
    """Let row-parallel modules hand on partial sums, and put the implementation where they are added and normed."""
    group = group_of(model)
    if group is None:
        raise ValueError("the model is not split over ranks: call wiring_shards.shard on it first")

    def reduce_add_norm(x: Tensor, residual: Tensor, **more: Any) -> Pair:
        rows, whole = (-1, x.shape[-1]), x.shape
        normed, h = implementation(x=x.reshape(rows), residual=residual.reshape(rows), group=group, **more)
        return normed.view(whole), h.view(whole)

    with ExitStack() as stack:
        for module in row_parallel(model):
            stack.enter_context(replaced(module, "forward", MethodType(type(module).forward, module)))
        stack.enter_context(wiring_residual.apply(model, reduce_add_norm))
        yield


def nothing(x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor, rounding: str = ONCE) -> Pair:
    """x and the residual themselves: nothing is reduced either."""
    return x, residual


def described(
    x: Tensor, weight: Tensor, eps: float, group: str, residual: Tensor | None = None, rounding: str = ONCE
) -> Described:
    """As the manifest names it."""
    T, D = x.shape
    return {"T": T, "D": D}, {"eps": eps, "rounding": rounding, "residual": residual is not None}


_MODELING = "transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe"
WIRINGS = (
    Wiring(
        op=OP.id,
        family="qwen3_omni_thinker_tp",
        native=OP.native,
        nothing=nothing,
        sites=wiring_residual.sites,
        apply=apply,
        described=described,
        native_calls=(r"all_reduce", r"rsqrt"),
        shard=shard,
        pinned={
            f"{_MODELING}:Qwen3OmniMoeThinkerTextRMSNorm.forward": "790fa612e4fa57ac",
            f"{_MODELING}:Qwen3OmniMoeThinkerTextDecoderLayer.forward": "75d1d62e173e8c57",
            f"{_MODELING}:Qwen3OmniMoeThinkerTextModel.forward": "acdd43d4e85d0ea5",
            f"{_MODELING}:Qwen3OmniMoeThinkerTextAttention.forward": "6c8fb032ff374243",
            f"{_MODELING}:Qwen3OmniMoeThinkerTextSparseMoeBlock.forward": "a435df3f8c0a39e7",
            f"{_MODELING}:Qwen3OmniMoeThinkerTextExperts.forward": "99ca265927013010",
        },
    ),
)
