"""How an op's candidates are put into a model: a `Wiring` names the call sites, replaces them and puts them back.

    candidates/<op>/wiring.py      WIRINGS = (Wiring(...), ...)

A wiring works on instances, before anything is compiled, and never touches a class or a module's global. It keeps the
state dict's keys, the attention backend and the names of block classes (`compile_repeated_blocks` matches those).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.op import Impl
from harness.schema.case import Param

if TYPE_CHECKING:
    from torch import nn

Described = tuple[dict[str, int], dict[str, Param]]
"""Dims and params of one call, as a manifest's case would name them."""


@dataclass(frozen=True)
class Site:
    """Calls of the op inside one module's forward."""

    module: str
    """Dotted path of the module whose forward contains them, in the model as built."""
    calls: int = 1
    """Calls of the op in one forward of that module."""


@dataclass(frozen=True)
class Wiring:
    """One op's call sites in one family of models."""

    op: str
    family: str
    """The module of `harness.e2e.models` whose models it fits."""
    native: Impl
    """The op as this model computes it, by the op's keyword arguments: `torch.equal` to the unwired model in eager."""
    nothing: Impl
    """Returns its inputs, or memory that nobody writes, where native returns its outputs: no work done, so it is the
    most that any candidate could gain. Work that a candidate may do faster than the compiler is none to leave in."""
    sites: Callable[[nn.Module], tuple[Site, ...]]
    """The call sites of a model as built, found by looking at it; empty when the op has none there."""
    apply: Callable[[nn.Module, Impl], AbstractContextManager[None]]
    """Every site calls the implementation by the op's (or context's) keyword arguments until the context is left;
    leaving it restores the model: same modules, same outputs to the bit."""
    described: Callable[..., Described]
    """Dims and params of one call from its keyword arguments; candidates' guards are asked about them."""
    native_calls: tuple[str, ...]
    """Regular expressions: each matches a node of the unwired model's traced graph that the op's native formula is made
    of, and that no longer stands there, at the wired sites, once an opaque candidate replaced it."""
    pinned: Mapping[str, str]
    """Upstream objects it binds to (`module:qualified.name`) with the first 16 digits of their source's
    SHA-256 when it was written."""
    context: str | None = None
    """Set when it replaces the op together with that context's neighbours."""
    shard: Callable[[nn.Module, str], None] | None = None
    """Cuts a whole model, in place, to this rank's share over the process group of that name; for workloads of several
    ranks, whose models are wired after it."""


@contextmanager
def replaced(owner: object, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an instance for the while; afterwards it is what and where it was.

    Submodules go through `nn.Module.__setattr__`, so a replaced submodule keeps its place in the module's order.
    """
    instance = vars(owner)
    registered = next(
        (vars(owner)[kind] for kind in ("_modules", "_parameters", "_buffers") if name in vars(owner).get(kind, {})),
        None,
    )
    if registered is not None:
        before = registered[name]
        registered[name] = value
        try:
            yield
        finally:
            registered[name] = before
        return
    was_own = name in instance
    before = instance.get(name)
    object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        if was_own:
            object.__setattr__(owner, name, before)
        else:
            object.__delattr__(owner, name)
