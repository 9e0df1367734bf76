"""RMSNorm rewrites whose timed form is not what the gate first saw. All are compiled and timed on a CPU.

What they hide is in custom ops, which torch.compile calls without looking inside.
"""

import torch
from torch import Tensor

from candidates.rmsnorm.op import native
from harness.op import Args, Candidate, Impl, candidate
from harness.schema.vocabulary import Contract, Kind
from tests.evil.wrong_results import EVIL

counts: dict[str, int] = {}
"""Calls so far, by custom op; a test sets them back."""
GATED_CALLS = 30
"""At least those whose outputs the gate compares with an earlier call's, fewer than those before the replay."""
HONEST_CALLS = 400
"""More than everything before the timing, fewer than the timing."""


def _rewrite(impl: Impl, kernels: tuple[str, ...] = ()) -> Candidate:
    return candidate(op="rmsnorm", kind=Kind.REWRITE, provider=EVIL, kernels=kernels, contract=Contract.TOLERANCE)(impl)


def _hidden(name: str) -> Impl:
    """A custom op `evil::name` of RMSNorm's signature from a function."""

    def register(function: Impl) -> Impl:
        op = torch.library.custom_op(f"evil::{name}", function, mutates_args=())
        op.register_fake(lambda x, weight, eps: torch.empty(x.shape, dtype=x.dtype, device=x.device))
        overload: Impl = getattr(torch.ops.evil, name).default
        return overload

    return register


@_hidden("tires")
def _tires(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    counts["tires"] = counts.get("tires", 0) + 1
    if counts["tires"] > HONEST_CALLS:
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return native(x, weight, eps).contiguous()


def _stops_working(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Stops computing after a while."""
    return _tires(x, weight, eps)


_remembered: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
"""Result by address and first element, with the input kept alive so that no other takes its address."""


@_hidden("remembers")
def _remembers(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    key = (x.data_ptr(), float(x[0, 0, 0]))
    if key not in _remembered:
        _remembered[key] = (native(x, weight, eps).contiguous(), x)
    return _remembered[key][0].clone()


_summed: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}


@_hidden("remembers_all")
def _remembers_all(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    counts["remembers_all"] = counts.get("remembers_all", 0) + 1
    key = (x.data_ptr(), float(x.double().sum()))
    if key not in _summed:
        _summed[key] = (native(x, weight, eps).contiguous(), x)
    kept = _summed[key][0]
    return kept.clone() if counts["remembers_all"] <= GATED_CALLS else kept.detach()


def _cached_by_all_content(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Remembers its result by a sum of x, and returns the very tensor once it is not called by the gate any more."""
    return _remembers_all(x, weight, eps)


_buffers: dict[tuple[int, ...], Tensor] = {}
"""One output for every shape."""


@_hidden("one_buffer")
def _one_buffer(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    buffer = _buffers.setdefault(tuple(x.shape), torch.empty(x.shape, dtype=x.dtype, device=x.device))
    buffer.copy_(native(x, weight, eps))
    return buffer


def _reuses_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, in one buffer for all calls: in a model k's norm overwrites q's."""
    return _one_buffer(x, weight, eps)


_given: dict[tuple[int, ...], Tensor] = {}
"""The last output of every shape."""


@_hidden("spoils")
def _spoils(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if (earlier := _given.get(tuple(x.shape))) is not None:
        earlier.zero_()
    _given[tuple(x.shape)] = native(x, weight, eps).contiguous()
    return _given[tuple(x.shape)].detach()


def _spoils_earlier_output(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right, and the last call's output is zero afterwards."""
    return _spoils(x, weight, eps)


def _cached_by_content(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Remembers its result until x's first element changes, and returns a copy: few new values expose it."""
    return _remembers(x, weight, eps)


def _wrong_when_compiled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right in eager mode, zeros under torch.compile."""
    if torch.compiler.is_compiling():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return native(x, weight, eps)


def _fine(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Right."""
    return native(x, weight, eps)


def _breaks_graph(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Cannot be one graph."""
    torch._dynamo.graph_break()
    return native(x, weight, eps)


def _in_place(x: Tensor, weight: Tensor, eps: float) -> None:
    """Honest, in place: x becomes the norm."""
    x.copy_(native(x, weight, eps))


def _work_in_prepare(args: Args) -> Args:
    return {"y": native(**args)}


def _returns_prepared(y: Tensor) -> Tensor:
    """Copies what its untimed `prepare` computed."""
    return y * 1


def _edits(args: Args) -> Args:
    args["weight"] = args["weight"].float()
    del args["eps"]
    return {**args, "eps": 1e-6}


def _widen(args: Args) -> Args:
    return {**args, "weight": args["weight"].float()}


def _takes_wide_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Honest: its `prepare` widens the weight, which a model does once."""
    return native(x, weight, eps)


stops_working = _rewrite(_stops_working)
cached_by_content = _rewrite(_cached_by_content)
cached_by_all_content = _rewrite(_cached_by_all_content)
wrong_when_compiled = _rewrite(_wrong_when_compiled)
fine = _rewrite(_fine)
reuses_output = _rewrite(_reuses_output)
spoils_earlier_output = _rewrite(_spoils_earlier_output)
breaks_graph = _rewrite(_breaks_graph)
never_launches = candidate(
    op="rmsnorm",
    kind=Kind.REWRITE,
    provider=EVIL,
    kernels=("a_kernel_that_is_not_there",),
    contract=Contract.TOLERANCE,
    name="never_launches",
)(_fine)
in_place = candidate(
    op="rmsnorm",
    kind=Kind.REWRITE,
    provider=EVIL,
    kernels=(),
    contract=Contract.TOLERANCE,
    mutates=("x",),
    returns=("x",),
    name="in_place",
)(_in_place)
prepares_result = candidate(
    op="rmsnorm",
    kind=Kind.REWRITE,
    provider=EVIL,
    kernels=(),
    contract=Contract.TOLERANCE,
    prepare=_work_in_prepare,
    name="prepares_result",
)(_returns_prepared)
edits_arguments = candidate(
    op="rmsnorm",
    kind=Kind.REWRITE,
    provider=EVIL,
    kernels=(),
    contract=Contract.TOLERANCE,
    prepare=_edits,
    name="edits_arguments",
)(_takes_wide_weight)
prepares_weight = candidate(
    op="rmsnorm",
    kind=Kind.REWRITE,
    provider=EVIL,
    kernels=(),
    contract=Contract.TOLERANCE,
    prepare=_widen,
    name="prepares_weight",
)(_takes_wide_weight)
