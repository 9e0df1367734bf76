"""Every wiring on the twins of the workloads: exact, complete, restoring, without breaks or recompiles.

Those of models split over ranks need as many processes: `test_allreduce_wiring.py`.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.e2e.arms import BASELINE_ID, model_arm
from harness.e2e.calls import counting_native, upstream_sources
from harness.e2e.quality import attention_backend
from harness.e2e.wirings import wirings_of
from harness.schema.process import ModelRole
from harness.wiring import Wiring
from tests.e2e.twins import ROOT, twin, workloads

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
OPS = sorted(path.parent.name for path in (ROOT / "candidates").glob("*/wiring.py"))
CELLS = [
    pytest.param(wiring, name, id="-".join(filter(None, (wiring.op, wiring.context, name))))
    for op in OPS
    for wiring in wirings_of(op)
    for name, workload in workloads().items()
    if workload.family == wiring.family and workload.ranks == 1
]
DTYPES = [torch.bfloat16, torch.float32]


def modules(model: nn.Module) -> dict[str, int]:
    return {name: id(module) for name, module in model.named_modules()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("wiring", "name"), CELLS)
@torch.no_grad()
def test_native_through_the_wiring_is_the_model_and_is_called_as_often(
    wiring: Wiring, name: str, dtype: torch.dtype
) -> None:
    of, model, inputs = twin(name, dtype)
    with counting_native(model, wiring) as seen:
        expected = of.run(model, inputs)
    assert seen.total() > 0
    before, keys, backend = modules(model), list(model.state_dict()), attention_backend(model)
    calls: Counter[str] = Counter()

    def counted(**args: Any) -> Any:
        calls["op"] += 1
        return wiring.native(**args)

    with wiring.apply(model, counted):
        assert list(model.state_dict()) == keys
        assert attention_backend(model) == backend
        assert torch.equal(of.run(model, inputs), expected)
    assert calls["op"] == seen.total()
    assert modules(model) == before
    assert torch.equal(of.run(model, inputs), expected)
    assert calls["op"] == seen.total()


class Work(TorchDispatchMode):
    """Notes the operations that write memory of their own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = (one for one in tree_leaves(result) if isinstance(one, Tensor))
        if any(one.untyped_storage().data_ptr() not in known for one in made):
            self.seen.append(str(func))
        return result


@pytest.mark.parametrize(("wiring", "name"), CELLS)
@torch.no_grad()
def test_leaving_the_op_out_does_no_work(wiring: Wiring, name: str) -> None:
    """Else it is no ceiling: a candidate may do that work faster than the compiler."""
    of, model, inputs = twin(name, torch.bfloat16)
    work = Work()

    def left_out(**args: Any) -> Any:
        with work:
            return wiring.nothing(**args)

    with wiring.apply(model, left_out):
        of.run(model, inputs)
    assert set(work.seen) <= {"harness_blocks.unwritten.default"}


@pytest.mark.parametrize(("wiring", "name"), CELLS)
@torch.no_grad()
def test_doing_nothing_changes_the_output(wiring: Wiring, name: str) -> None:
    of, model, inputs = twin(name)
    expected = of.run(model, inputs)
    with wiring.apply(model, wiring.nothing):
        output = of.run(model, inputs)
    assert output.shape == expected.shape
    assert not torch.equal(output, expected)


@pytest.mark.parametrize(("wiring", "name"), CELLS)
def test_each_kind_of_call_is_a_case_of_the_op(wiring: Wiring, name: str) -> None:
    from harness import catalog

    op = catalog.load(wiring.op, ROOT).op
    of, model, inputs = twin(name)
    seen: list[tuple[dict[str, int], dict[str, Any]]] = []

    def note(**args: Any) -> Any:
        seen.append(wiring.described(**args))
        return wiring.native(**args)

    with torch.no_grad(), wiring.apply(model, note):
        of.run(model, inputs)
    for dims, params in seen:
        assert tuple(dims) in op.dims
        assert {key: type(value) for key, value in params.items()} == dict(op.params)


@pytest.mark.parametrize(("wiring", "name"), CELLS)
def test_upstream_is_what_the_wiring_was_written_for(wiring: Wiring, name: str) -> None:
    assert upstream_sources(wiring) == dict(wiring.pinned)


@pytest.mark.slow
@pytest.mark.timeout(900)  # minutes of C++ for a VAE's whole decoder, twice
@pytest.mark.parametrize(("wiring", "name"), CELLS)
@torch.no_grad()
def test_a_wired_model_compiles_whole_with_as_many_graphs(wiring: Wiring, name: str) -> None:
    of, model, inputs = twin(name)
    baseline = model_arm(BASELINE_ID, ModelRole.BASELINE, of, model)
    wired = model_arm("nothing", ModelRole.CEILING, of, model, lambda one: wiring.apply(one, wiring.native))
    expected, output = baseline.run(of, inputs), wired.run(of, inputs)
    baseline.run(of, inputs)
    wired.run(of, inputs)
    # what carries a residual from layer to layer has a first layer of its own
    more = int(wiring.context is not None)
    assert baseline.log.graphs <= wired.log.graphs <= baseline.log.graphs + more
    assert baseline.log.graphs >= 1
    assert torch.allclose(output.float(), expected.float(), rtol=0.05, atol=0.05)
