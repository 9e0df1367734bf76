"""Every candidate of `tests.evil.wrong_results` is refused with its own reason, and its honest neighbour is not."""

import pytest

from harness.op import Candidate
from harness.schema.case import Dtype
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.evil import hidden_work
from tests.evil import wrong_results as evil
from tests.rig import arm_of, measured, quick, rmsnorm_case


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def refused(candidate: Candidate, reason: str, dtype: Dtype = Dtype.BF16) -> None:
    """The candidate fails the gate for that reason; the honest one, judged after it, and the baseline do not."""
    of = measured(candidate, evil.honest, case=rmsnorm_case(dtype=dtype))
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    assert arm.samples_us == ()
    neighbour = arm_of(of, evil.honest)
    assert neighbour.status is ArmStatus.REHEARSED, (neighbour.status, neighbour.reason)
    assert of.status is RunStatus.MEASURED, of.reason


@pytest.mark.parametrize("candidate", [evil.zero_output, evil.constant_output], ids=lambda c: c.name)
def test_output_that_does_not_depend_on_the_input(candidate: Candidate) -> None:
    refused(candidate, "elements fail the element rule")


@pytest.mark.defence("gate_nan")
@pytest.mark.parametrize("candidate", [evil.one_nan, evil.all_nan], ids=lambda c: c.name)
def test_nan(candidate: Candidate) -> None:
    refused(candidate, "NaN or Inf")


@pytest.mark.defence("contract_layouts")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (evil.ignores_strides, "contract: layout sliced"),
        (evil.writes_outside_slice, "contract: layout sliced: writes to its input 'x'"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_strides(candidate: Candidate, reason: str) -> None:
    refused(candidate, reason)


@pytest.mark.defence("gate_whole_storage")
def test_write_beside_a_slice() -> None:
    refused(evil.writes_outside_slice, "writes to its input 'x' without declaring it")


@pytest.mark.defence("contract_two_batches")
def test_first_batch_repeated_shows_though_the_case_has_one_batch() -> None:
    of = measured(evil.ignores_batch, evil.honest, case=rmsnorm_case({"B": 1, "S": 16, "D": 64}))
    arm = arm_of(of, evil.ignores_batch)
    assert arm.status is ArmStatus.GATE_FAILED
    assert "contract: layout contiguous" in arm.reason
    assert arm_of(of, evil.honest).status is ArmStatus.REHEARSED


@pytest.mark.defence("inputs_differ_by_batch")
def test_first_batch_repeated() -> None:
    refused(evil.ignores_batch, "fail the element rule")


@pytest.mark.defence("inputs_drawn_weights")
def test_weights_ignored() -> None:
    refused(evil.reads_first_weight, "fail the element rule")


@pytest.mark.defence("gate_new_values")
def test_result_cached_by_pointer() -> None:
    refused(evil.cached_by_pointer, "normal, new values: ")


@pytest.mark.defence("gate_mutation")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [(evil.writes_input, "writes to its input 'x'"), (evil.writes_weight_too, "writes to its input 'weight'")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_undeclared_mutation(candidate: Candidate, reason: str) -> None:
    refused(candidate, reason)


@pytest.mark.defence("gate_repair")
def test_spoiled_inputs_are_not_blamed_on_the_next_arm() -> None:
    refused(evil.writes_input, "writes to its input 'x'")


def test_memory_that_nobody_wrote() -> None:
    """What the allocator hands out is NaN or somebody's old values, never right: see also the poison's own test."""
    refused(evil.leaves_output_unwritten, "contract: layout contiguous: ")


@pytest.mark.defence("contract_fake")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (evil.wrong_shape, "its fake says (1, 4, 64) torch.bfloat16, it returns (4, 64)"),
        (evil.wrong_strides, "its fake says strides"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_fake_that_lies(candidate: Candidate, reason: str) -> None:
    of = measured(candidate, evil.honest, case=rmsnorm_case({"B": 4, "S": 16, "D": 64}))
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    assert arm_of(of, evil.honest).status is ArmStatus.REHEARSED


def test_wrong_dtype() -> None:
    refused(evil.wrong_dtype, "torch.float32, native's is (2, 4, 64) torch.bfloat16")


@pytest.mark.defence("gate_repeat")
def test_two_runs_that_differ() -> None:
    refused(evil.irreproducible, "two runs on the same inputs differ")


@pytest.mark.defence("gate_kept_outputs")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (hidden_work.reuses_output, "returns the memory of an earlier call's output"),
        (hidden_work.spoils_earlier_output, "writes to an earlier call's output"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_outputs_of_earlier_calls_are_the_callers(candidate: Candidate, reason: str) -> None:
    refused(candidate, reason)


def test_a_prepare_that_edits_its_dict_edits_a_copy() -> None:
    of = measured(hidden_work.edits_arguments, hidden_work.fine, evil.honest)
    assert of.status is RunStatus.MEASURED, of.reason
    statuses = {one.id: (one.status, one.reason) for one in of.arms}
    assert statuses[hidden_work.edits_arguments.id] == statuses[hidden_work.fine.id] == (ArmStatus.OK, "")
    assert statuses[evil.honest.id][0] is ArmStatus.REHEARSED


@pytest.mark.defence("gate_bit_exact")
def test_bit_exact_claim_that_is_not_kept() -> None:
    refused(evil.not_bit_exact, "claims bit_exact, but ")


@pytest.mark.defence("accuracy_fp32_rms")
def test_less_precision_than_the_case_asks_for() -> None:
    """tf32 rounding lies far within 1e-2; the error against the oracle beside native's own gives it away."""
    refused(evil.half_precision_inside, "RMS error", Dtype.FP32)


@pytest.mark.defence("gate_scaled_variants")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [(evil.overflows, "large: "), (evil.ignores_eps, "small: ")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_right_on_unit_normal_inputs_alone(candidate: Candidate, reason: str) -> None:
    refused(candidate, reason)


@pytest.mark.defence("contract_compiled")
def test_right_eager_and_wrong_inside_torch_compile() -> None:
    refused(evil.wrong_inside_compile, "right in eager mode, different inside torch.compile")


@pytest.mark.defence("gate_scratch")
def test_tuning_in_place_does_not_count_against_a_kernel() -> None:
    """The tuner's extra runs go to scratch tensors; every call that is judged runs the kernel once."""
    evil._tuned.clear()
    arm = arm_of(measured(evil.tuned_in_place), evil.tuned_in_place)
    assert arm.status is ArmStatus.REHEARSED, arm.reason


def test_a_candidate_that_lacks_an_argument_of_the_case_is_not_eligible() -> None:
    one = rmsnorm_case()
    before_weight = one.model_copy(update={"params": {**one.params, "rounding": "before_weight"}})
    arm = arm_of(measured(evil.honest, case=before_weight), evil.honest)
    assert (arm.status, arm.reason) == (ArmStatus.INELIGIBLE, "takes no rounding, which the case gives")
