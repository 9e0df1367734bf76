"""One process of a cell, on the twin of Wan: what is proved, what is refused, what is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from candidates.rmsnorm import wiring as rmsnorm_wiring
from candidates.rmsnorm.op import OP
from harness.e2e import beaten, timing
from harness.e2e.models import Family, family
from harness.e2e.process import CellProcess
from harness.e2e.protocol import CellJob, CellSettings
from harness.e2e.quality import checkpoint_sha256
from harness.e2e.wirings import wiring_for
from harness.e2e.workbench import RefusedError
from harness.op import INHOUSE, TORCH, Candidate, candidate
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Contract, Kind, RunStatus
from harness.schema.workload import merged
from harness.wiring import Wiring
from tests.builders import LAPTOP, environment
from tests.e2e.twins import ROOT, twin, workloads
from tests.rig import CPU, TOLERANCE, StubLink, without_inductor

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
LIMITS = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit")
NAME = "wan2.1-t2v-1.3b"
REWRITE: dict[str, Any] = {"op": "rmsnorm", "kind": Kind.REWRITE, "provider": TORCH, "kernels": ()}


@candidate(**REWRITE, contract=Contract.TOLERANCE)
def by_hand(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Right."""
    x32 = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (normed if weight is None else normed * weight).to(x.dtype)


@candidate(**REWRITE, contract=Contract.TOLERANCE)
def divides(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Right, and rounded otherwise."""
    x32 = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = x32 / (x32.square().mean(-1, keepdim=True) + eps).sqrt()
    return ((normed if weight is None else weight * normed) * (1 + 2**-12)).to(x.dtype)


@candidate(**REWRITE, contract=Contract.TOLERANCE)
def forgets_the_weight(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Wrong on any weight but ones."""
    return by_hand.run(x, None, eps)  # type: ignore[no-any-return]


@candidate(**REWRITE, contract=Contract.BIT_EXACT)
def claims_too_much(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Near, and says that it is equal."""
    return (by_hand.run(x, weight, eps).float() * (1 + 2**-8)).to(x.dtype)  # type: ignore[no-any-return]


@candidate(**REWRITE, contract=Contract.TOLERANCE)
def raises(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Broken."""
    raise RuntimeError("no kernel image")


@candidate(**REWRITE, contract=Contract.TOLERANCE, guard=lambda case, device: "not today")
def declines_all(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Never eligible."""
    raise AssertionError


@candidate(
    **REWRITE, contract=Contract.TOLERANCE, guard=lambda case, device: "few rows" if case.dims["S"] == 16 else None
)
def declines_text(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Right, and left alone with the text's keys: those go to native."""
    assert x.shape[1] != 16
    return by_hand.run(x, weight, eps)  # type: ignore[no-any-return]


@candidate(op="rmsnorm", kind=Kind.TRITON, provider=INHOUSE, kernels=("x",), contract=Contract.TOLERANCE)
def interpreted(x: Tensor, weight: Tensor | None, eps: float, rounding: str = "once") -> Tensor:
    """Stands for a kernel in the interpreter: checked, never timed."""
    return by_hand.run(x, weight, eps)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _no_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_inductor(monkeypatch)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.1)  # what is proved and recorded is tested, not how precisely
    config = torch._dynamo.config
    kept = {name: getattr(config, name) for name in LIMITS}
    with config.patch(**kept):  # a process raises them for good
        yield


def process(*candidates: Candidate, wiring: Wiring | None = None, number: int = 0, **settings: Any) -> CellProcess:
    workload = workloads()[NAME]
    component = workload.components[0]
    job = CellJob(
        root=str(ROOT),
        op="rmsnorm",
        workload=NAME,
        family="wan",
        config=merged(workload.config, component.rehearsal.config),
        component=component.model_copy(update={"inputs": component.rehearsal.inputs}),
        device_type="cpu",
        tolerance=TOLERANCE,
        candidates=tuple(one.id for one in candidates),
        sequence="s",
        process=number,
        cold_compile=True,
        pairs=6,
        p_max=None,
        settings=CellSettings(budget_s=10, **settings),
    )
    return CellProcess(
        job=job,
        op=OP,
        wiring=wiring or wiring_for("rmsnorm", "wan", None),
        candidates=list(candidates),
        sources={},
        device=CPU,
        environment=environment(LAPTOP),
        e2e_sha256="e2e",
        wiring_sha256="wirings",
        copy_bytes_per_us=1e4,
        link=StubLink(),
        started_s=monotonic(),
    )


def arm(record: ProcessRecord, one: Candidate | str) -> ModelArmRecord:
    found = record.arm(one if isinstance(one, str) else one.id)
    assert found is not None
    return found


def test_a_process_proves_and_times_what_is_right_and_refuses_the_rest() -> None:
    record = process(
        by_hand,
        forgets_the_weight,
        claims_too_much,
        raises,
        declines_all,
        declines_text,
        interpreted,
        slowdown_pct=20.0,
    ).measure()
    assert record.status is RunStatus.MEASURED, record.reason
    assert {one.role for one in record.arms} == set(ModelRole)
    good = arm(record, by_hand)
    assert good.status is ArmStatus.OK, good.reason
    assert good.calls is not None
    assert good.calls.expected == good.calls.eager == 8
    ceiling = arm(record, "do_nothing").calls
    assert ceiling is not None
    assert (ceiling.expected, ceiling.eager) == (8, None), "what was not counted is not said"
    (pattern,) = good.calls.native_nodes
    assert good.calls.native_nodes[pattern] == 0 < good.calls.native_nodes_baseline[pattern]
    assert good.shadow is not None
    assert good.shadow.passed
    assert good.quality is not None
    assert 0.7 < good.quality.ratio < 1.2
    assert good.graph_count == arm(record, "torch.compile").graph_count == 1
    assert len(good.times_ms) == len(record.orders) == 3
    statuses = {
        forgets_the_weight: ArmStatus.GATE_FAILED,
        claims_too_much: ArmStatus.GATE_FAILED,
        raises: ArmStatus.CRASHED,
        declines_all: ArmStatus.INELIGIBLE,
        interpreted: ArmStatus.REHEARSED,
    }
    for one, status in statuses.items():
        assert arm(record, one).status is status, arm(record, one).reason
        assert arm(record, one).times_ms == ()
    assert "elements fail the element rule" in arm(record, forgets_the_weight).reason
    assert "claims bit_exact, but" in arm(record, claims_too_much).reason
    assert arm(record, raises).reason == "in checking every call: RuntimeError: no kernel image"
    partly = arm(record, declines_text)
    assert partly.status is ArmStatus.OK, partly.reason
    assert partly.calls is not None
    assert partly.calls.declined == {"1x16x128": "few rows"}
    slow, fast = (
        min(min(pair) for pair in arm(record, name).times_ms) for name in ("torch.compile_slowed", "torch.compile")
    )
    assert slow > 1.1 * fast
    assert record.op_bytes > 0
    assert record.library.startswith("diffusers ")


def test_later_processes_leave_out_what_the_first_has_proved() -> None:
    record = process(by_hand, number=1).measure()
    assert {one.role for one in record.arms} == {
        ModelRole.BASELINE, ModelRole.BASELINE_DYNAMIC, ModelRole.TWIN, ModelRole.CANDIDATE,
    }  # fmt: skip
    assert arm(record, by_hand).shadow is None
    assert arm(record, by_hand).quality is None
    calls = arm(record, by_hand).calls
    assert calls is not None
    assert calls.eager is None
    assert arm(record, by_hand).status is ArmStatus.OK


def test_a_quarantined_candidate_is_not_touched() -> None:
    one = process(raises)
    one.job = one.job.model_copy(update={"left_out": {raises.id: (ArmStatus.CRASHED, "killed by SIGSEGV")}})
    assert arm(one.measure(), raises).reason == "killed by SIGSEGV"


def test_a_beaten_dynamic_baseline_is_recorded_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beaten, "CLEARLY", 0.0)
    record = process(by_hand).measure()
    assert record.status is RunStatus.MEASURED, record.reason
    dynamic = arm(record, "torch.compile_dynamic")
    assert (dynamic.status, dynamic.times_ms) == (ArmStatus.BEATEN, ())
    assert dynamic.reason.startswith("the fastest of its 4 samples took ")
    assert (dynamic.graph_count, dynamic.compile_s > 0) == (1, True), "it was built and compared"
    timed = {"torch.compile", "torch.compile_twin", "do_nothing", "torch.native_as_custom_op", by_hand.id}
    assert set(record.timed_arms) == timed
    assert record.phases_s["baselines"] > 0


def test_what_is_left_out_of_a_later_process_is_not_built() -> None:
    one = process(by_hand, number=1)
    left_out = {
        "torch.compile_dynamic": (ArmStatus.BEATEN, "78 ms a run"),
        by_hand.id: (ArmStatus.DECIDED, "the rule said WIN after process 0"),
    }
    one.job = one.job.model_copy(update={"left_out": left_out})
    record = one.measure()
    assert record.timed_arms == ("torch.compile", "torch.compile_twin")
    for name, (status, reason) in left_out.items():
        found = arm(record, name)
        assert (found.status, found.reason, found.compile_s, found.graph_count) == (status, reason, 0.0, None)
    assert "baselines" not in record.phases_s


@pytest.mark.defence("e2e_native_exact")
def test_a_wiring_whose_native_is_another_formula_is_refused() -> None:
    def rounds_otherwise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return (rmsnorm_wiring.native(x, weight, eps).float() * (1 + 2**-7)).to(x.dtype)

    with pytest.raises(RefusedError, match="does not reproduce the model's own output to the bit"):
        process(wiring=replace(wiring_for("rmsnorm", "wan", None), native=rounds_otherwise)).measure()


def test_a_wiring_that_leaves_the_model_changed_is_refused() -> None:
    whole = wiring_for("rmsnorm", "wan", None)

    @contextmanager
    def leaves_a_trace(model: nn.Module, implementation: Any) -> Iterator[None]:
        with whole.apply(model, implementation):
            yield
        model.get_submodule("blocks.0.attn1.norm_q").weight.mul_(1.5)  # type: ignore[operator]

    with pytest.raises(RefusedError, match=r"unwired again, does not give its own output to the bit: \d+ of"):
        process(wiring=replace(whole, apply=leaves_a_trace)).measure()


@pytest.mark.parametrize("off", [(0, 1, 0, 1), (0, 0, 1, 0), (0, 0, 1, 1, 1, 0)])
def test_a_model_that_does_not_repeat_itself_is_told_from_a_wrong_wiring(
    off: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs: counted, wired, unwired again, then those that ask who is to blame; so many of them are off."""
    runs = iter(off)

    def run(self: Family, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return Family.run(self, model, inputs) + 0.5 * next(runs)

    monkeypatch.setattr(type(family("wan")), "run", run)
    with pytest.raises(RefusedError, match=r"not repeat its own output to the bit, .* by at most 0\.[45]\d* where"):
        process().measure()


@pytest.mark.defence("e2e_all_sites")
def test_a_wiring_that_leaves_a_site_out_is_refused() -> None:
    whole = wiring_for("rmsnorm", "wan", None)

    @contextmanager
    def all_but_one(model: nn.Module, implementation: Any) -> Iterator[None]:
        with whole.apply(model, implementation):
            wired = model.get_submodule("blocks.0.attn1.norm_q")
            wired.implementation = whole.native  # type: ignore[assignment]
            yield

    with pytest.raises(RefusedError, match="the wiring sees 7 calls where the model makes 8"):
        process(wiring=replace(whole, apply=all_but_one)).measure()


@pytest.mark.defence("e2e_engagement")
def test_a_candidate_that_is_not_in_the_compiled_graphs_fell_back() -> None:
    """The compiled model keeps native: what a graph captured before the wiring would hold."""
    whole = wiring_for("rmsnorm", "wan", None)

    @contextmanager
    def eager_only(model: nn.Module, implementation: Any) -> Iterator[None]:
        def choose(**args: Any) -> Any:
            return whole.native(**args) if torch.compiler.is_compiling() else implementation(**args)

        with whole.apply(model, choose):
            yield

    record = process(by_hand, wiring=replace(whole, apply=eager_only)).measure()
    assert arm(record, by_hand).status is ArmStatus.FELL_BACK
    assert "still stands" in arm(record, by_hand).reason


def test_real_weights_are_judged_by_their_output_too(tmp_path: Path) -> None:
    _, model, _ = twin(NAME)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    one = process(by_hand, divides)
    one.job = one.job.model_copy(update={"checkpoint": str(tmp_path)})
    record = one.measure()
    assert record.checkpoint == checkpoint_sha256(str(tmp_path))
    same, other = arm(record, by_hand).quality, arm(record, divides).quality
    assert same is not None
    assert (same.bit_exact, same.psnr_db) == (True, None)
    assert other is not None, arm(record, divides).reason
    assert other.psnr_db is not None
    assert 40 < other.psnr_db < 100
    assert (other.ssim, other.lpips) == (None, None), "a latent of 8 x 8 holds no window and is no picture"
