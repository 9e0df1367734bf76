"""One measurement: samples in, outcomes out, and every reason for which there is none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.schema.measurement import Measurement
from harness.schema.verdict import ArmVerdict, Comparison
from harness.schema.vocabulary import ArmStatus, Kind, Outcome, RunStatus
from harness.verdict.compare import Staleness, compare
from tests.builders import BASELINE, TWIN, Arm, measurement, stored, with_samples


def judged(of: Measurement) -> Comparison:
    return compare(of.case, stored(of)[0], Staleness(), 0)


def arm(of: Measurement, name: str = "inhouse.k") -> ArmVerdict:
    return next(arm for arm in judged(of).arms if arm.id == name)


@pytest.mark.parametrize(
    ("speedup", "noise_percent", "outcome"),
    [
        (1.30, 0.2, Outcome.FASTER),
        (1.02, 0.2, Outcome.FASTER),
        (1.00, 0.2, Outcome.TIE),
        (0.997, 0.2, Outcome.TIE),
        (0.97, 0.2, Outcome.SLOWER),
        (1.01, 0.5, Outcome.INCONCLUSIVE),
        (1.02, 6.0, Outcome.INCONCLUSIVE),
    ],
)
def test_outcome_follows_the_interval(speedup: float, noise_percent: float, outcome: Outcome) -> None:
    found = arm(measurement({"inhouse.k": Arm(speedup, noise_percent=noise_percent)}))
    assert found.outcome is outcome
    assert found.ratio is not None
    assert found.ratio.lower < speedup < found.ratio.upper
    assert found.reason == ""


def test_figures_are_those_of_the_samples() -> None:
    """Two arms without noise: 100 µs and 80 µs, the copy at 45 µs, a floor of three halves of the copy's bytes."""
    of = measurement({"inhouse.k": Arm(), "sglang.k": Arm()}, floor_bytes=6 * 2_621_440)
    of = with_samples(of, BASELINE, [(99.0, 101.0)] * 24)
    of = with_samples(of, TWIN, [(101.0, 99.0)] * 24)
    of = with_samples(of, "inhouse.k", [(79.0, 81.0)] * 24)
    of = with_samples(of, "sglang.k", [(90.0, 90.0)] * 24)
    found = arm(of)
    in_us, base_us = math.sqrt(79 * 81), math.sqrt(99 * 101)
    assert found.time_us is not None
    assert found.ratio is not None
    assert found.time_us.estimate == pytest.approx(in_us)
    assert found.ratio.estimate == pytest.approx(base_us / in_us)
    assert found.rivals["sglang.k"].estimate == pytest.approx(90 / in_us)
    assert found.copy_share == pytest.approx(45 / in_us)
    assert found.floor_share == pytest.approx(45 * 1.5 / in_us)
    assert arm(of, TWIN).rivals == {}


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(0.01, 1000), seed=st.integers(0, 50), speedup=st.floats(0.5, 2.0))
def test_a_unit_of_time_changes_no_outcome(scale: float, seed: int, speedup: float) -> None:
    of = measurement({"inhouse.k": Arm(speedup)}, seed=seed)
    scaled = of
    for one in of.arms:
        scaled = with_samples(scaled, one.id, [(out * scale, back * scale) for out, back in one.samples_us])
    assert of.roofline is not None
    assert of.controls is not None
    roofline = of.roofline.model_copy(update={"copy_us": of.roofline.copy_us * scale})
    controls = of.controls.model_copy(update={"copy_bytes_per_us": of.controls.copy_bytes_per_us / scale})
    scaled = scaled.model_copy(update={"roofline": roofline, "controls": controls})
    found, other = arm(of), arm(scaled)
    assert found.outcome is other.outcome
    assert found.effect_log_pct is not None
    assert other.effect_log_pct is not None
    assert other.effect_log_pct.estimate == pytest.approx(found.effect_log_pct.estimate, abs=1e-6)


def test_drift_that_hits_both_ways_alike_cancels_in_the_block() -> None:
    """The way back is the reverse of the way out, so a clock that drifts 20 % in the run leaves a tie a tie."""
    of = measurement({"inhouse.k": Arm()}, noise_percent=0.05)
    drift = np.linspace(0.9, 1.1, 24)
    for position, name in enumerate((BASELINE, TWIN, "inhouse.k")):
        out, back = drift + 0.004 * position, drift + 0.004 * (5 - position)
        of = with_samples(of, name, [(100 * o, 100 * b) for o, b in zip(out, back, strict=True)])
    assert arm(of).outcome is Outcome.TIE


@pytest.mark.defence("verdict_aa")
@pytest.mark.parametrize(("twin_speedup", "noise_percent"), [(1.02, 0.2), (0.98, 0.2), (1.0, 8.0)])
def test_nothing_is_judged_when_the_twin_is_no_tie(twin_speedup: float, noise_percent: float) -> None:
    of = measurement({"inhouse.k": Arm(1.5)}, twin_speedup=twin_speedup, noise_percent=noise_percent)
    found = arm(of)
    assert found.outcome is Outcome.INVALID
    assert found.reason.startswith("A/A failed: twin ")
    assert found.time_us is not None
    assert judged(of).invalid == found.reason


@pytest.mark.defence("verdict_aa")
def test_nothing_is_judged_when_the_same_code_is_no_tie() -> None:
    of = measurement({"inhouse.k": Arm(1.5)}, control_speedup=1.07)
    assert arm(of).reason.startswith("A/A failed: control ")
    assert "not inside ±5 %" in arm(of).reason


@pytest.mark.defence("verdict_aa_allowance")
@pytest.mark.parametrize(
    ("control_speedup", "speedup", "outcome"),
    [
        (1.02, 1.5, Outcome.FASTER),
        (1.02, 1.025, Outcome.INCONCLUSIVE),
        (0.98, 1.025, Outcome.INCONCLUSIVE),
        (1.02, 0.975, Outcome.INCONCLUSIVE),
        (1.02, 0.7, Outcome.SLOWER),
        (1.0, 1.025, Outcome.FASTER),
    ],
)
def test_what_the_same_code_differs_by_is_allowed_for(control_speedup: float, speedup: float, outcome: Outcome) -> None:
    of = measurement({"inhouse.k": Arm(speedup)}, control_speedup=control_speedup, noise_percent=0.05)
    found = judged(of)
    assert found.invalid == ""
    assert arm(of).outcome is outcome
    assert arm(of).ratio is not None
    assert arm(of).ratio.estimate == pytest.approx(speedup, rel=2e-3)
    allowed = abs(100 * math.log(control_speedup))
    assert found.allowance_log_pct == pytest.approx(allowed, abs=0.2)  # the far end of the control's interval
    assert (found.allowance_log_pct == 0) == (control_speedup == 1.0)
    assert arm(of).effect_log_pct is not None
    width = arm(of).effect_log_pct.upper - arm(of).effect_log_pct.lower
    assert width == pytest.approx(2 * found.allowance_log_pct, abs=0.4)


@pytest.mark.defence("verdict_lottery")
@pytest.mark.parametrize(
    ("twin_speedup", "candidate_speedup", "outcome", "reference"),
    [
        (1.06, 1.03, Outcome.SLOWER, TWIN),
        (1.06, 1.09, Outcome.FASTER, TWIN),
        (0.94, 1.03, Outcome.FASTER, BASELINE),
        (0.94, 0.97, Outcome.SLOWER, BASELINE),
        (1.0, 1.03, Outcome.FASTER, BASELINE),
    ],
)
def test_a_candidate_must_beat_the_faster_of_two_compiles(
    twin_speedup: float, candidate_speedup: float, outcome: Outcome, reference: str
) -> None:
    of = measurement(
        {"inhouse.k": Arm(candidate_speedup)}, twin_speedup=twin_speedup, control_speedup=1.0, noise_percent=0.1
    )
    assert arm(of).outcome is outcome
    assert judged(of).reference == reference
    assert bool(judged(of).lottery) == (twin_speedup != 1.0)
    against = twin_speedup if reference == TWIN else 1.0
    assert arm(of).ratio is not None
    assert arm(of).ratio.estimate == pytest.approx(candidate_speedup / against, rel=2e-3)


@pytest.mark.defence("verdict_gate_after")
def test_a_gate_that_fails_after_timing_undoes_the_times() -> None:
    found = arm(measurement({"inhouse.k": Arm(2.0, gate_after_passed=False)}))
    assert found.outcome is Outcome.INVALID
    assert found.reason == "GATE_FAILED after timing: zeros on replay"


@pytest.mark.defence("verdict_gate_missing")
@pytest.mark.parametrize(("field", "when"), [("gate", "before"), ("gate_after", "after")])
def test_a_time_without_its_gate_does_not_count(field: str, when: str) -> None:
    of = measurement({"inhouse.k": Arm(2.0)})
    arms = tuple(one.model_copy(update={field: None}) if one.id == "inhouse.k" else one for one in of.arms)
    found = arm(of.model_copy(update={"arms": arms}))
    assert (found.outcome, found.reason) == (Outcome.INVALID, f"no gate {when} timing")


@pytest.mark.defence("verdict_memory")
def test_faster_than_memory_is_disbelieved_unless_the_case_is_l2_resident() -> None:
    of = measurement({"inhouse.k": Arm(4.0)})
    found = arm(of)
    assert found.outcome is Outcome.INVALID
    assert found.reason.startswith("FASTER_THAN_MEMORY: ")
    assert of.roofline is not None
    resident = of.model_copy(update={"roofline": of.roofline.model_copy(update={"l2_resident": True})})
    assert arm(resident).outcome is Outcome.FASTER


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (ArmStatus.INELIGIBLE, Outcome.NOT_RUN),
        (ArmStatus.NOT_INSTALLED, Outcome.NOT_RUN),
        (ArmStatus.REHEARSED, Outcome.NOT_RUN),
        (ArmStatus.GATE_FAILED, Outcome.INVALID),
        (ArmStatus.FELL_BACK, Outcome.INVALID),
        (ArmStatus.CRASHED, Outcome.INVALID),
        (ArmStatus.TIMED_OUT, Outcome.INVALID),
        (ArmStatus.OUT_OF_MEMORY, Outcome.INVALID),
    ],
)
def test_an_arm_that_was_not_timed_says_why(status: ArmStatus, outcome: Outcome) -> None:
    of = measurement({"inhouse.k": Arm(), "bad.k": Arm(status=status, reason="because")})
    found = arm(of, "bad.k")
    assert found.outcome is outcome
    assert "because" in found.reason
    assert found.time_us is None
    assert arm(of).outcome is Outcome.TIE


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.MEASURED])
def test_a_run_that_failed_judges_nothing(status: RunStatus) -> None:
    found = judged(measurement({"inhouse.k": Arm(2.0)}, status=status, reason="five blocks were void"))
    assert found.invalid == f"{status}: five blocks were void"
    assert {one.outcome for one in found.candidates} == {Outcome.INVALID}


@pytest.mark.parametrize("blocks", [1, 7])
def test_too_few_blocks_are_no_measurement(blocks: int) -> None:
    found = judged(measurement({"inhouse.k": Arm(2.0)}, blocks=blocks))
    assert found.invalid == "torch.compile: fewer than 8 blocks, or a block without its two times"
    assert found.candidates[0].outcome is Outcome.INVALID


def test_a_time_of_zero_is_no_time() -> None:
    of = measurement({"inhouse.k": Arm(1.2)})
    of = with_samples(of, "inhouse.k", [(0.0, 1.0)] * 24)
    assert arm(of).outcome is Outcome.INVALID


def test_a_measurement_without_a_twin_is_invalid() -> None:
    of = measurement({"inhouse.k": Arm(1.2)})
    of = of.model_copy(update={"arms": tuple(one for one in of.arms if one.id != TWIN)})
    assert judged(of).invalid == "the measurement holds no baseline with its twin"


def test_a_candidate_that_changes_the_shape_of_the_noise_is_reported() -> None:
    of = measurement({"inhouse.k": Arm(1.1)}, noise_percent=0.05)
    samples = [(90.9, 90.9)] * 20 + [(140.0, 140.0)] * 4
    assert "changes the shape of the noise" in arm(with_samples(of, "inhouse.k", samples)).notes[0]
    assert arm(of).notes == ()


def fenced(candidate_us: float, kind: Kind = Kind.TRITON) -> ArmVerdict:
    """A candidate of 8 µs a call in its own train, against 10 µs, that takes so long behind another kernel."""
    of = measurement({"inhouse.k": Arm(1.25, kind=kind)}, base_us=10.0, noise_percent=0.05)
    behind = {"inhouse.k": candidate_us, BASELINE: 10.1}
    arms = tuple(one.model_copy(update={"fenced_us": behind.get(one.id)}) for one in of.arms)
    return arm(of.model_copy(update={"arms": arms}))


def test_a_train_that_hides_nothing_is_the_time() -> None:
    found = fenced(8.2)
    assert (found.notes, found.outcome) == ((), Outcome.FASTER)
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(1.25, rel=2e-3)


@pytest.mark.defence("overlapping_launches")
def test_launches_that_overlap_one_another_are_judged_by_what_they_take_behind_another_kernel() -> None:
    slower = fenced(11.0)
    assert slower.time_us is not None
    assert slower.time_us.estimate == pytest.approx(11.0, rel=2e-3)
    assert slower.outcome is Outcome.SLOWER
    (note,) = slower.notes
    assert "8.00 µs a call in a train of its own, 11.00 µs behind another kernel, where torch.compile takes 10" in note
    assert note.endswith("judged by the latter, within 5 %")
    # the reading may be off by 5 %: 10 against 9.5 tells nothing, 10 against 8.8 does
    assert fenced(9.5).outcome is Outcome.INCONCLUSIVE
    assert fenced(8.8).outcome is Outcome.FASTER


def test_a_rival_is_told_apart_by_more_than_that_one_reading_may_be_off() -> None:
    of = measurement({"inhouse.k": Arm(1.25), "inhouse.other": Arm(1.0)}, base_us=10.0, noise_percent=0.05)
    behind = {"inhouse.k": 9.0, BASELINE: 10.1}
    arms = tuple(one.model_copy(update={"fenced_us": behind.get(one.id)}) for one in of.arms)
    ratio = arm(of.model_copy(update={"arms": arms})).rivals["inhouse.other"]
    assert ratio.estimate == pytest.approx(10 / 9, rel=2e-3)
    assert ratio.lower < 10 / 9 * 0.953 < 10 / 9 * 1.049 < ratio.upper


def test_what_no_overlap_can_hide_and_kernels_of_torch_are_timed_by_their_train() -> None:
    assert fenced(13.5).notes == ()
    assert fenced(11.0, Kind.REWRITE).notes == ()


def test_kinds_and_costs_are_passed_on() -> None:
    found = arm(measurement({"inhouse.k": Arm(1.1, kind=Kind.CUDA, tags={"BLOCK": "4096"})}))
    assert found.kind is Kind.CUDA
    assert found.kernels == ("k_kernel",)
    assert found.tags == {"BLOCK": "4096"}
    assert (found.build_s, found.peak_bytes, found.launches) == (2.5, 3 * 2**20, 40)
