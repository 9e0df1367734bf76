"""What a contributor writes: an `Op` (the authority and its inputs) and candidates that claim to compute it.

    candidates/<op>/op.py      OP = Op(...)
    candidates/<op>/<any>.py   @candidate(op="<op>", ...) above one function

Nothing is registered globally: the catalog collects the `Op` and `Candidate` objects it finds in the modules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.schema.case import Case, Layout
from harness.schema.vocabulary import Contract, Kind

if TYPE_CHECKING:
    import torch
    from torch import Tensor


Args = dict[str, Any]
"""Keyword arguments of an op: tensors, and scalars such as eps."""
Impl = Callable[..., Any]
"""An implementation of an op, called with its `Args` by keyword; returns a tensor or a tuple of tensors."""


class Draw(Protocol):
    """Draws the inputs of a case: the same bytes on every device, from the recorded seed."""

    device: torch.device
    dtype: torch.dtype
    """The case's activation dtype."""
    rank: int
    """This process's place among the case's ranks; 0 where there is one."""
    ranks: int
    group: str
    """Name of the c10d process group of the case's ranks, as `torch.ops._c10d_functional` takes it; "" for one rank."""

    def activation(self, name: str, shape: tuple[int, ...], layout: Layout = Layout.CONTIGUOUS) -> Tensor:
        """About N(0, 1), in `dtype`, other values on each rank; the gate's scaled and offset variants change only
        these."""
        ...

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        loc: float = 0.0,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """About N(loc, scale²), contiguous, equal on all ranks; never ones or zeros, so that a swapped or ignored
        weight shows."""
        ...


@dataclass(frozen=True)
class Context:
    """The op together with its neighbours in the model.

    A custom op is a fusion barrier for Inductor, so a candidate that wins alone can lose here.
    """

    id: str
    what: str
    """One line for reports, e.g. `residual add -> RMSNorm`."""
    inputs: Callable[[Case, Draw], Args]
    """Arguments of the composed function; names shared with the op's own arguments mean the same thing."""
    compose: Callable[[Impl], Impl]
    """Given an implementation of the op, the function to time: it is compiled as a whole, `fullgraph`."""
    bytes_moved: Callable[[Case], int]
    """Bytes the composed function must move: each distinct input once and each output once."""
    scratch: tuple[str, ...] = ()
    """Its own inputs that it hands to the op and nobody reads later: an op that works in place overwrites them too."""


@dataclass(frozen=True)
class Op:
    """A computation with one authoritative formula."""

    id: str
    dims: tuple[tuple[str, ...], ...]
    """The orders of dim names it takes; a case's `dims` must be one of them."""
    params: Mapping[str, type]
    """Names and types of the case's `params` it needs, all of them."""
    native: Impl
    """The authority. Written for any float dtype: fp32 accumulation for 16-bit inputs, fp64 for fp64 inputs, so
    that the same formula on upcast inputs is the gate's oracle. An argument with a default is given only by cases that
    differ from it: candidates without it fit the others."""
    fake: Impl
    """Shape, dtype and strides that candidates' outputs have unless they declare their own `fake`: the one given to
    `torch.library.register_fake`."""
    inputs: Callable[[Case, Draw], Args]
    bytes_moved: Callable[[Case], int]
    """Bytes the op must move: each distinct input once and each output once."""
    check: Callable[[Case], str | None] = lambda case: None
    """A sentence that says why a case is impossible (channels not divisible by groups, ...), or None."""
    floor_bytes: Callable[[Case], int] | None = None
    """Bytes a kernel of the usual design moves when it must read twice (norms whose group outgrows the registers);
    reports print the ratio to it beside the ratio to the copy. None when one read and one write is the floor."""
    contexts: tuple[Context, ...] = ()

    def context(self, context_id: str) -> Context:
        """The context of that id; raises KeyError with the ids there are."""
        for context in self.contexts:
            if context.id == context_id:
                return context
        raise KeyError(f"op {self.id} has no context {context_id!r}; it has {[c.id for c in self.contexts]}")


@dataclass(frozen=True)
class Device:
    """What a guard may ask about the device."""

    type: str
    """`cuda` or `cpu`."""
    name: str
    capability: tuple[int, int]
    """CUDA compute capability; (0, 0) on a CPU."""
    sm_count: int
    l2_bytes: int
    """Level-2 cache: the GPU's, or one CPU core's."""
    memory_bytes: int


Guard = Callable[[Case, Device], str | None]
"""None when the candidate is eligible for the case, else the reason in a few words."""


@dataclass(frozen=True)
class Provider:
    """An upstream package that kernels come from. The loading is done once, by its module in `_providers`."""

    id: str
    missing: Callable[[], str | None]
    """One sentence that says what is missing and how to get it, or None. Never raises; must be cheap."""
    version: Callable[[], str | None]

    def __post_init__(self) -> None:
        """A provider that raises is one that is missing; it must not take the others' candidates with it."""
        object.__setattr__(self, "missing", _told(self.missing, f"provider {self.id} raises {{}}"))
        object.__setattr__(self, "version", _told(self.version, "unknown: {}"))


def _told(ask: Callable[[], str | None], on_error: str) -> Callable[[], str | None]:
    """`ask`, with an exception turned into the answer."""

    def asked() -> str | None:
        try:
            return ask()
        except Exception as error:
            return on_error.format(f"{type(error).__name__}: {error}")

    return asked


def _nothing_missing() -> str | None:
    return None


def _no_version() -> str | None:
    return None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What `torch.library` takes in the name of an op."""

INHOUSE = Provider("inhouse", _nothing_missing, _no_version)
"""Kernels written in this repository."""
TORCH = Provider("torch", _nothing_missing, _no_version)


def always(case: Case, device: Device) -> str | None:
    """The guard of a candidate that takes every case."""
    return None


@dataclass(frozen=True)
class Candidate:
    """One callable that claims to compute an op (or an op in one context)."""

    name: str
    """Unique among the provider's candidates for the op."""
    op: str
    kind: Kind
    provider: Provider
    run: Impl
    """Timed. Takes the op's (or context's) arguments by keyword; fully annotated, for `torch.library.custom_op`."""
    kernels: tuple[str, ...]
    """Regular expressions; each must match (search) some kernel seen in a profile of the timed callable."""
    contract: Contract
    guard: Guard = always
    mutates: tuple[str, ...] = ()
    """Arguments it writes to."""
    returns: tuple[str, ...] = ()
    """Mutated arguments that are its outputs, in native's output order; empty when `run` returns its outputs."""
    prepare: Callable[[Args], Args] | None = None
    """Not timed: maps the arguments to those of `run` (a weight in another dtype, a packed cache). Called once per set
    of tensors, as a model would: what it makes of activations is stale when they change, and the gate says so."""
    fake: Impl | None = None
    """Strides it really writes, when they differ from the op's `fake`; None means the op's."""
    context: str | None = None
    """Set when it computes the op together with that context's neighbours; None for the op alone."""
    deterministic: bool = True
    """Whether two runs on the same inputs give the same bits."""
    equal_ranks: bool = False
    """Claims that every rank's outputs are the same bits; for ops whose formula gives all ranks one result."""
    multicast: bool = False
    """Needs NVLink multicast, which stays off: it is listed, and refused with that reason."""

    def __post_init__(self) -> None:
        """Raises ValueError for a declaration that cannot be right, however the candidate is made."""
        if problem := self._problem():
            raise ValueError(f"candidate {self.name!r} for {self.op}: {problem}")

    def _problem(self) -> str:
        if not _NAME.fullmatch(str(self.name)):
            return "its name must be letters, digits and underscores, not beginning with a digit (name=...)"
        if not isinstance(self.provider, Provider) or not _NAME.fullmatch(self.provider.id):
            return "provider=... must be a Provider whose id is letters, digits and underscores"
        if self.kind not in (Kind.REWRITE, Kind.TRITON, Kind.CUDA):
            return f"kind={self.kind!r} must be Kind.REWRITE, Kind.TRITON or Kind.CUDA"
        if self.contract not in (Contract.BIT_EXACT, Contract.TOLERANCE):
            return f"contract={self.contract!r} must be Contract.BIT_EXACT or Contract.TOLERANCE"
        if not callable(self.run):
            return "run=... must be a function"
        for field, value in (("kernels", self.kernels), ("mutates", self.mutates), ("returns", self.returns)):
            if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
                return f"{field}={value!r} must be a tuple of texts, such as ({value!r},)"
        if self.kind in (Kind.TRITON, Kind.CUDA) and not self.kernels:
            return f"a {self.kind} candidate must name the kernels it launches (kernels=...)"
        for pattern in self.kernels:
            try:
                re.compile(pattern)
            except re.error as error:
                return f"kernels: {pattern!r} is no regular expression ({error})"
        if not set(self.returns) <= set(self.mutates):
            return f"returns={self.returns} must be among mutates={self.mutates}"
        return ""

    @property
    def id(self) -> str:
        """`provider.name`, as in reports and on the command line."""
        return f"{self.provider.id}.{self.name}"

    def declines(self, case: Case, device: Device) -> str | None:
        """Why its guard rules the case out, or None. A guard that raises rules it out too, and says so."""
        try:
            return self.guard(case, device)
        except Exception as error:
            return f"its guard raises {type(error).__name__}: {error}"

    def __call__(self, **args: Any) -> Any:
        """Call `run` directly: for tests and for use outside the harness."""
        return self.run(**args)


def candidate(
    *,
    op: str,
    kind: Kind,
    provider: Provider,
    kernels: tuple[str, ...],
    contract: Contract,
    guard: Guard = always,
    mutates: tuple[str, ...] = (),
    returns: tuple[str, ...] = (),
    prepare: Callable[[Args], Args] | None = None,
    fake: Impl | None = None,
    context: str | None = None,
    deterministic: bool = True,
    equal_ranks: bool = False,
    multicast: bool = False,
    name: str | None = None,
) -> Callable[[Impl], Candidate]:
    """Turn the function below into a `Candidate` called after it.

    Triton and CUDA functions are registered by the harness as custom ops with `torch.library.custom_op` and
    `register_fake`; rewrites are compiled. The function below raises ValueError for a declaration that cannot be right.
    """

    def wrap(run: Impl) -> Candidate:
        return Candidate(
            name=name or run.__name__,
            op=op,
            kind=kind,
            provider=provider,
            run=run,
            kernels=kernels,
            contract=contract,
            guard=guard,
            mutates=mutates,
            returns=returns,
            prepare=prepare,
            fake=fake,
            context=context,
            deterministic=deterministic,
            equal_ranks=equal_ranks,
            multicast=multicast,
        )

    return wrap
