"""The arms of an end-to-end cell: one model each, on one set of weights, wired and compiled on its own.

Dynamo caches by code object, and a deep copy shares its class's code: an arm that compiled the class's own forward
would reuse, and lengthen, the cache of all the others. So each arm compiles copies of the forwards with code objects
of its own, and its graphs are counted.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from harness.e2e.build import sharing
from harness.e2e.engaged import NAMESPACE
from harness.e2e.models import Family, Inputs
from harness.measure.arms import GraphCounter, own_code, registered_op
from harness.op import Args, Candidate, Impl, Op
from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.process import ModelRole
from harness.schema.vocabulary import Kind
from harness.wiring import Wiring

GRAPHS_LIMIT = 64
"""Dynamo's recompile limits: VAEs that decode in chunks need a few graphs per arm, and none may fall back to eager."""

BASELINE_ID = "torch.compile"
DYNAMIC_ID = "torch.compile_dynamic"
TWIN_ID = "torch.compile_twin"
CEILING_ID = "do_nothing"
OPAQUE_ID = "torch.native_as_custom_op"
POSITIVE_ID = "torch.compile_slowed"

Signature = tuple[tuple[Any, ...], ...]
"""What tells one kind of call from another."""


class GraphLog(GraphCounter):
    """Inductor behind a count of graphs and of what stands in them."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: Counter[str] = Counter()
        """What is called, by name, but for candidates: one may be called after the very op that it replaces."""

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        called = [_target(node) for node in graph_module.graph.nodes if node.op.startswith("call")]
        self.nodes.update(name for name in called if NAMESPACE not in name)
        return super().__call__(graph_module, example_inputs)


def _target(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else torch.typename(node.target)


@dataclass
class ModelArm:
    """One thing timed in a cell."""

    id: str
    role: ModelRole
    model: nn.Module
    log: GraphLog
    tag: str
    """Salt of the compile cache's keys: no arm reuses another's artefacts."""
    candidate: Candidate | None = None
    wiring: ExitStack = field(default_factory=ExitStack)

    def run(self, family: Family, inputs: Inputs) -> Tensor:
        """One run of the component."""
        with torch.compiler.config.patch(cache_key_tag=self.tag):  # type: ignore[attr-defined]
            return family.run(self.model, inputs)


def call_case(described: tuple[dict[str, int], dict[str, Any]], activation: Tensor, workload: str, ranks: int) -> Case:
    """A call seen in a model as a case, for a candidate's guard."""
    dims, params = described
    return Case(
        id="call",
        model=workload,
        dims=dims,
        params=params,
        dtype=Dtype(str(activation.dtype).removeprefix("torch.")),
        layout=layout_of(activation),
        calls=1,
        step="one call in the model",
        source="a call captured in the model",
        confidence=Confidence.QUOTED,
        rehearsal=dims,
        ranks=ranks,
    )


def layout_of(tensor: Tensor) -> Layout:
    """The layout of a tensor seen in a model, in the words of the manifests."""
    if tensor.is_contiguous():
        return Layout.CONTIGUOUS
    if tensor.ndim in (4, 5):
        last = torch.channels_last if tensor.ndim == 4 else torch.channels_last_3d
        if tensor.is_contiguous(memory_format=last):
            return Layout.CHANNELS_LAST
    return Layout.SLICED if tensor.stride(-1) == 1 else Layout.TRANSPOSED


def wired_implementation(op: Op, wiring: Wiring, candidate: Candidate) -> Impl:
    """What the wiring calls for a candidate: by the op's (or the wiring's context's) keyword arguments, its outputs.

    What the candidate prepares is prepared in the call and timed: nothing hoists it out of a model unasked.
    """
    target = candidate.run if candidate.kind is Kind.REWRITE else registered_op(candidate, op)
    prepare, returns = candidate.prepare, candidate.returns

    def implementation(**args: Any) -> Any:
        if prepare is not None:
            args = prepare(dict(args))
        result = target(**args)
        if returns:
            changed = tuple(args[name] for name in returns)
            return changed if len(changed) > 1 else changed[0]
        return result

    if wiring.context is not None and candidate.context is None:
        return op.context(wiring.context).compose(implementation)
    return implementation


def routed(implementation: Impl, native: Impl, declined: frozenset[Signature]) -> Impl:
    """The implementation, and native for the calls that the candidate's guard declines.

    The choice is by shapes, strides and dtypes, so a compiled model holds the one that was chosen and no test of it.
    """
    if not declined:
        return implementation

    def call(**args: Any) -> Any:
        return native(**args) if signature(args) in declined else implementation(**args)

    return call


def signature(args: Args) -> Signature:
    """Shapes, strides and dtypes of tensors, and the other values, by name, in the order the wiring gives them."""
    return tuple(
        (name, tuple(value.shape), value.stride(), str(value.dtype)) if isinstance(value, Tensor) else (name, value)
        for name, value in args.items()
    )


def model_arm(
    arm_id: str,
    role: ModelRole,
    family: Family,
    model: nn.Module,
    wired: Callable[[nn.Module], AbstractContextManager[None]] | None = None,
    *,
    candidate: Candidate | None = None,
    dynamic: bool = False,
) -> ModelArm:
    """A copy of the model on the same weights, wired, its repeated blocks (or decoder) compiled on their own.

    Only what the family names is compiled, each module's forward with `fullgraph=True`: a graph break raises.
    """
    arm = ModelArm(arm_id, role, sharing(model), GraphLog(), f"e2e {arm_id}", candidate)
    if wired is not None:
        arm.wiring.enter_context(wired(arm.model))
    compile_forwards(family, arm.model, arm.log, arm_id, dynamic=dynamic)
    return arm


def compile_forwards(family: Family, model: nn.Module, log: GraphLog, label: str, *, dynamic: bool) -> None:
    """Compile the forward of each module the family names, in place, from code objects of this arm's own.

    Modules that share one forward (the blocks of a transformer) share one code object and so one graph; a forward that
    a wiring bound to an instance is compiled as it is there.
    """
    codes: dict[types.CodeType, types.CodeType] = {}
    for module in family.compiled(model):
        function = module.forward.__func__  # type: ignore[attr-defined]
        if function.__code__ not in codes:
            codes[function.__code__] = own_code(function, _identifier(label)).__code__
        copied = types.FunctionType(
            codes[function.__code__],
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        compiled = torch.compile(copied, fullgraph=True, dynamic=dynamic, backend=log)
        module.forward = types.MethodType(compiled, module)


def _identifier(label: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in label)


def raise_graph_limits() -> None:
    """Let every arm have its graphs: past the limit Dynamo runs eager in silence."""
    torch._dynamo.config.recompile_limit = GRAPHS_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = 64 * GRAPHS_LIMIT
    torch._dynamo.config.fail_on_recompile_limit_hit = True
