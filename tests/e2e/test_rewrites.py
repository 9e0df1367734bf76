"""Every rewrite in every wiring it competes in: native's own calls no longer stand in the traced graphs.

A rewrite is no custom op and has no kernels of its own: that native's chain is gone is all that shows that it ran.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from harness import catalog
from harness.e2e.arms import GraphLog, call_case, compile_forwards, wired_implementation
from harness.e2e.build import sharing
from harness.e2e.engaged import counted
from harness.e2e.wirings import wirings_of
from harness.op import Candidate
from harness.schema.vocabulary import Kind
from harness.wiring import Wiring
from tests.e2e.twins import ROOT, twin, workloads
from tests.rig import CPU

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
OPS = sorted(path.parent.name for path in (ROOT / "candidates").glob("*/wiring.py"))
FAMILIES = {workload.family: name for name, workload in reversed(workloads().items()) if workload.ranks == 1}
"""A workload of each family."""


@cache
def rewrites(op: str) -> tuple[Candidate, ...]:
    return tuple(one for one in catalog.load(op, ROOT).candidates if one.kind is Kind.REWRITE)


def pairs() -> Iterator[Any]:
    """The first family of each op, context and rewrite; the others are the slow matrix."""
    seen = set()
    for op in OPS:
        for wiring in wirings_of(op):
            for candidate in rewrites(op):
                if wiring.family not in FAMILIES or candidate.context not in (None, wiring.context):
                    continue
                name = "-".join(filter(None, (wiring.family, wiring.context, candidate.name)))
                kind = op, wiring.context, candidate.name
                yield pytest.param(wiring, candidate, id=name, marks=[pytest.mark.slow] if kind in seen else [])
                seen.add(kind)


class Traced(GraphLog):
    """Counts what stands in the graphs and runs them as they are."""

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        self.nodes.update(
            node.target if isinstance(node.target, str) else torch.typename(node.target)
            for node in graph_module.graph.nodes
            if node.op.startswith("call")
        )
        return graph_module.forward


def traced(family_name: str, wiring: Wiring | None = None, candidate: Candidate | None = None) -> Counter[str]:
    """The names called in the graphs of the family's twin, wired or as it is."""
    torch._dynamo.reset()
    family, model, inputs = twin(FAMILIES[family_name])
    copy, log = sharing(model), Traced()
    if wiring is None or candidate is None:
        compile_forwards(family, copy, log, "native", dynamic=False)
        family.run(copy, inputs)
        return log.nodes
    op = catalog.load(wiring.op, ROOT).op
    with wiring.apply(copy, wired_implementation(op, wiring, candidate)):
        compile_forwards(family, copy, log, candidate.name, dynamic=False)
        family.run(copy, inputs)
    return log.nodes


def declined(wiring: Wiring, candidate: Candidate) -> str | None:
    """Why its guard takes none of the family's calls, by the first of them."""
    family, model, inputs = twin(FAMILIES[wiring.family])
    reasons: list[str | None] = []

    def note(**args: Any) -> Any:
        activation = next(value for value in args.values() if isinstance(value, Tensor))
        reasons.append(candidate.declines(call_case(wiring.described(**args), activation, wiring.family, 1), CPU))
        return wiring.native(**args)

    with wiring.apply(model, note):
        family.run(model, inputs)
    return reasons[0]


@cache
def native(family_name: str) -> Counter[str]:
    return traced(family_name)


@pytest.mark.parametrize(("wiring", "candidate"), list(pairs()))
@torch.no_grad()
def test_natives_calls_are_gone(wiring: Wiring, candidate: Candidate) -> None:
    if reason := declined(wiring, candidate):
        pytest.skip(reason)
    before, after = (
        counted(wiring.native_calls, nodes)
        for nodes in (native(wiring.family), traced(wiring.family, wiring, candidate))
    )
    for pattern, count in before.items():
        assert 0 <= after[pattern] < count, pattern
