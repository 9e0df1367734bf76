"""The gate's own parts: poison, repair, references, what an arm's record says."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from candidates.rmsnorm.op import OP
from harness.measure.arms import Arm
from harness.measure.gate import ArmGate, Gate, copied_args, same_strided_copy, storage_fingerprint
from harness.measure.inputs import Variant
from harness.op import Op
from harness.schema.case import Case, Dtype, Layout
from harness.schema.vocabulary import Contract, Kind, Role
from tests.rig import TOLERANCE, rmsnorm_case


def gate(case: Case | None = None, op: Op = OP) -> Gate:
    return Gate(op, case or rmsnorm_case(), None, TOLERANCE, torch.device("cpu"), 7)


def arm(call: object, contract: Contract = Contract.TOLERANCE) -> Arm:
    return Arm("evil.x", Kind.REWRITE, Role.CANDIDATE, contract, call, "function")  # type: ignore[arg-type]


@pytest.mark.defence("gate_poison")
def test_poison_fills_memory_of_each_output_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which block the next output gets is the allocator's business; the replay check poisons outputs themselves."""
    tried = gate()
    reference = tried.reference(tried.draw())
    made: list[torch.Tensor] = []
    empty_like = torch.empty_like

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        made.append(empty_like(tensor))
        return made[-1]

    monkeypatch.setattr(torch, "empty_like", kept)
    tried.poison(reference)
    assert [one.shape for one in made] == [output.shape for output in reference.native]
    assert all(bool(one.isnan().all()) for one in made)


@pytest.mark.parametrize("layout", [Layout.CONTIGUOUS, Layout.SLICED, Layout.TRANSPOSED, Layout.ODD_STRIDE])
@pytest.mark.defence("gate_repair")
def test_repair_restores_whole_storages(layout: Layout) -> None:
    tried = gate(rmsnorm_case(layout=layout))
    for reference in tried.references():
        x = reference.args["x"]
        pointer = x.data_ptr()
        x.untyped_storage().fill_(3)
        assert storage_fingerprint(x) != reference.fingerprints["x"]
        tried.repair(reference)
        assert storage_fingerprint(x) == reference.fingerprints["x"]
        assert x.data_ptr() == pointer


@pytest.mark.defence("gate_new_values")
def test_second_reference_has_other_values_at_the_same_address() -> None:
    references = gate().references()
    first = next(references)
    pointers, before = {n: t.data_ptr() for n, t in _tensors(first.args).items()}, copied_args(first.args)
    second = next(references)
    assert second.variant is Variant.NORMAL
    assert {n: t.data_ptr() for n, t in _tensors(second.args).items()} == pointers
    for name, tensor in _tensors(second.args).items():
        assert not torch.equal(tensor, before[name]), name
    assert [reference.variant for reference in references] == [Variant.LARGE, Variant.SMALL, Variant.OFFSET]


def _tensors(args: dict[str, object]) -> dict[str, Tensor]:
    return {name: value for name, value in args.items() if isinstance(value, Tensor)}


def test_variants_shrink_with_the_case_and_the_oracle_with_memory() -> None:
    def variants(elements: int) -> list[tuple[int, Variant]]:
        return gate(rmsnorm_case({"T": elements // 64, "D": 64})).variants()

    assert len(variants(1 << 26)) == 5
    assert variants((1 << 26) + 64) == [(0, Variant.NORMAL), (1, Variant.NORMAL)]
    assert variants((1 << 30) + 64) == [(0, Variant.NORMAL)]
    assert gate(rmsnorm_case({"T": 1 << 24, "D": 64})).oracle_dtype is torch.float64
    assert gate(rmsnorm_case({"T": (1 << 24) + 1, "D": 64})).oracle_dtype is torch.float32
    assert gate().held_offset == 1
    assert gate(rmsnorm_case({"T": (1 << 24) + 1, "D": 64})).held_offset == 0


def test_native_passes_its_own_gate_bit_for_bit() -> None:
    tried = gate()
    judge = ArmGate(tried, arm(OP.native, Contract.BIT_EXACT))
    for reference in tried.references():
        judge.see(reference)
    record = judge.record()
    assert record.passed
    assert record.bit_exact
    assert record.deterministic
    assert record.literal_failures == record.rule_failures == record.max_ulp == 0
    assert record.rms_error_oracle == record.rms_error_native_oracle > 0
    assert record.oracle == "float64"
    assert record.elements == 2048
    assert record.variants == ("normal", "normal, new values", "large", "small", "offset")


@pytest.mark.defence("gate_aliasing")
def test_output_that_is_its_input() -> None:
    """An op whose second output equals x: handing x back is right in value and wrong in memory."""

    def native(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return OP.native(x=x, weight=weight, eps=eps), x.clone()

    def returns_input(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return OP.native(x=x, weight=weight, eps=eps), x[:]

    tried = gate(op=replace(OP, native=native))
    reference = tried.reference(tried.draw())
    honest, evil = (ArmGate(tried, arm(call)) for call in (native, returns_input))
    honest.see(reference)
    evil.see(reference)
    assert honest.reason == ""
    assert evil.reason == "normal: returns memory of its input 'x'"


def test_wrong_number_of_outputs() -> None:
    tried = gate()
    judge = ArmGate(tried, arm(lambda x, weight, eps: (x, x)))
    judge.see(tried.reference(tried.draw()))
    assert judge.reason == "normal: 2 outputs where native has 1"


def test_first_failure_sticks() -> None:
    tried = gate()
    judge = ArmGate(tried, arm(lambda x, weight, eps: torch.zeros_like(x)))
    references = list(tried.references())
    judge.see(references[0])
    first = judge.reason
    judge.see(references[1])
    assert judge.reason == first != ""
    assert len(judge.variants) == 1


def test_truncating_interpreter_is_granted_one_ulp_and_says_so() -> None:
    tried = gate()
    triton = replace(arm(OP.native), kind=Kind.TRITON)
    assert tried.granted_ulp(triton) == 1
    assert tried.granted_ulp(arm(OP.native)) == 0
    assert gate(rmsnorm_case(dtype=Dtype.FP32)).granted_ulp(triton) == 0
    judge = ArmGate(tried, triton)
    judge.see(tried.reference(tried.draw()))
    assert any("1 ULP granted" in note for note in judge.record().notes)


def test_copies_keep_strides_and_what_lies_beside_a_slice() -> None:
    base = torch.arange(24.0).view(2, 12)
    view = base[:, 4:8]
    copy = same_strided_copy(view)
    assert copy.stride() == view.stride()
    assert copy.storage_offset() == 4
    assert storage_fingerprint(copy) == storage_fingerprint(view)
    copy.fill_(0)
    assert view[0, 0] == 4


def interpreted_arm(calls: list[Tensor]) -> Arm:
    """A Triton arm, as far as the gate on a CPU can tell."""

    def counted(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        calls.append(x)
        y: Tensor = OP.native(x, weight, eps)
        return y

    return replace(arm(counted), kind=Kind.TRITON)


@pytest.mark.parametrize("thorough", [True, False])
def test_interpreted_arm_judged_before_is_spared_repeat_and_scaled_inputs(thorough: bool) -> None:
    """Each call takes the interpreter seconds; what was left out is noted."""
    tried, calls = gate(), list[Tensor]()
    judged = ArmGate(tried, interpreted_arm(calls), thorough=thorough)
    for reference in tried.references():
        judged.see(reference)
    record = judged.record()
    assert record.passed
    if thorough:
        assert record.variants == ("normal", "normal, new values", "large", "small", "offset")
        assert len(calls) == 6
    else:
        assert record.variants == ("normal", "normal, new values")
        assert len(calls) == 2
    assert any("scaled inputs were judged in an earlier comparison" in note for note in record.notes) is not thorough
