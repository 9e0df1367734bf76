"""Weighting by calls, coverage, and the leader that is chosen on some blocks and confirmed on others."""

import math

import numpy as np
import pytest

from harness.schema.case import Confidence
from harness.schema.measurement import Measurement
from harness.schema.verdict import CandidateVerdict, StepVerdict
from harness.schema.vocabulary import ArmStatus, Kind, Outcome
from tests.builders import Arm, case, decided, manifest, measurement, with_samples


def step_of(*measurements: Measurement) -> StepVerdict:
    cases = [one.case for one in measurements]
    return decided(*measurements, of=manifest(*cases)).rows[0].cards[0].steps[0]


def named(step: StepVerdict, name: str) -> CandidateVerdict:
    return next(candidate for candidate in step.candidates if candidate.id == name)


@pytest.mark.defence("verdict_weighting")
def test_calls_decide_and_the_geomean_does_not() -> None:
    """Speedups 1.54, 1.50, 1.33, .97, .96: a geomean of 1.23 is a slowdown where the calls are."""
    speedups = {"s1": (1.54, 4), "s2": (1.50, 4), "s3": (1.33, 8), "s4": (0.97, 400), "s5": (0.96, 390)}
    runs = [
        measurement({"inhouse.k": Arm(speedup)}, of=case(name, calls=calls), noise_percent=0.1)
        for name, (speedup, calls) in speedups.items()
    ]
    step = step_of(*runs)
    found = named(step, "inhouse.k")
    assert found.geomean_ratio == pytest.approx(1.234, abs=0.004)
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(0.97, abs=0.005)
    assert found.outcome is Outcome.SLOWER
    assert step.outcome is Outcome.SLOWER
    assert found.baseline_step_us == pytest.approx(806 * 100, rel=2e-3)


def test_a_case_it_is_not_eligible_for_counts_as_the_baseline() -> None:
    runs = [
        measurement({"sglang.k": Arm(1.5)}, of=case("a", calls=1), noise_percent=0.05),
        measurement(
            {"sglang.k": Arm(status=ArmStatus.INELIGIBLE, reason="C is no power of two")}, of=case("b", calls=3)
        ),
    ]
    found = named(step_of(*runs), "sglang.k")
    assert (found.covered, found.cases) == (1, 2)
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(4 / (1 / 1.5 + 3), rel=2e-3)
    assert found.outcome is Outcome.FASTER


@pytest.mark.parametrize(
    ("second", "outcome", "reason", "waiting"),
    [
        (
            Arm(status=ArmStatus.GATE_FAILED, reason="12 elements"),
            Outcome.INVALID,
            "GATE_FAILED: 12 elements (on b)",
            False,
        ),
        (Arm(status=ArmStatus.CRASHED, reason="in gate"), Outcome.INVALID, "CRASHED: in gate (on b)", False),
        (Arm(2.0, gate_after_passed=False), Outcome.INVALID, "GATE_FAILED after timing: zeros on replay (on b)", False),
        (Arm(status=ArmStatus.NOT_INSTALLED, reason="no sglang"), Outcome.NOT_RUN, "no sglang", True),
        (None, Outcome.NOT_RUN, "not measured: b", True),
    ],
)
def test_one_case_without_a_time_leaves_the_candidate_without_a_sum(
    second: Arm | None, outcome: Outcome, reason: str, waiting: bool
) -> None:
    runs = [
        measurement({"inhouse.k": Arm(1.0), "sglang.k": Arm(2.0)}, of=case("a"), base_us=200),
        measurement({"inhouse.k": Arm(1.0)} | ({"sglang.k": second} if second else {}), of=case("b"), base_us=200),
    ]
    step = step_of(*runs)
    found = named(step, "sglang.k")
    assert (found.outcome, found.reason, found.waiting, found.ratio) == (outcome, reason, waiting, None)
    assert step.leader == "inhouse.k"
    assert step.settled is not waiting


@pytest.mark.parametrize(("speedup", "settled"), [(0.991, True), (1.009, False)])
def test_an_interval_over_a_bound_is_settled_where_it_cannot_be_faster(speedup: float, settled: bool) -> None:
    step = step_of(measurement({"inhouse.k": Arm(speedup, noise_percent=0.6)}, noise_percent=0.1))
    assert step.leader_ratio is not None
    assert step.outcome is Outcome.INCONCLUSIVE, step.leader_ratio
    assert step.settled is settled
    assert ("TIE or SLOWER, and not FASTER" in step.reason) is settled


def test_a_step_that_cannot_be_faster_still_waits_for_an_absent_candidate() -> None:
    absent = Arm(status=ArmStatus.NOT_INSTALLED, reason="no sglang")
    step = step_of(measurement({"inhouse.k": Arm(0.991, noise_percent=0.6), "sglang.k": absent}, noise_percent=0.1))
    assert (step.outcome, step.settled) == (Outcome.INCONCLUSIVE, False)
    assert step.reason == "TIE or SLOWER, and not FASTER; sglang.k: no sglang"


def test_not_eligible_anywhere_is_settled() -> None:
    out = Arm(status=ArmStatus.INELIGIBLE, reason="bf16 only")
    step = step_of(measurement({"sglang.k": out}))
    assert (step.outcome, step.reason, step.settled) == (Outcome.NOT_RUN, "no candidate is eligible", True)
    assert named(step, "sglang.k").reason == "not eligible for any of the cases: bf16 only"


@pytest.mark.defence("verdict_leader_fresh_blocks")
def test_the_leader_is_confirmed_on_blocks_that_did_not_choose_it() -> None:
    """`lucky` is 3 % faster on the even blocks alone: it leads, and its own odd blocks say TIE."""
    of = measurement({"inhouse.lucky": Arm(1.0), "inhouse.steady": Arm(1.005)}, noise_percent=0.1)
    lucky = of.arm("inhouse.lucky")
    assert lucky is not None
    samples = [
        (out / 1.03, back / 1.03) if block % 2 == 0 else (out, back)
        for block, (out, back) in enumerate(lucky.samples_us)
    ]
    step = step_of(with_samples(of, "inhouse.lucky", samples))
    assert step.leader == "inhouse.lucky"
    assert step.outcome is Outcome.TIE
    assert step.leader_ratio is not None
    assert step.leader_ratio.estimate == pytest.approx(1.0, abs=0.002)


def test_eager_native_is_a_yardstick_and_never_leads() -> None:
    step = step_of(measurement({"torch.native": Arm(1.5, kind=Kind.NATIVE), "inhouse.k": Arm(1.2, kind=Kind.REWRITE)}))
    assert step.leader == "inhouse.k"
    assert named(step, "torch.native").outcome is Outcome.FASTER


@pytest.mark.defence("verdict_memory_confidence")
def test_dims_from_memory_are_left_out_and_decide_nothing_alone() -> None:
    recalled = case("recalled", calls=1000, confidence=Confidence.MEMORY)
    runs = [measurement({"inhouse.k": Arm(1.2)}, of=case("read")), measurement({"inhouse.k": Arm(0.5)}, of=recalled)]
    step = step_of(*runs)
    assert (step.case_ids, step.left_out, step.decides) == (("read",), ("recalled",), True)
    assert step.outcome is Outcome.FASTER
    alone = recalled.model_copy(update={"model": "flux-vae"})
    steps = decided(*runs[:1], measurement({"inhouse.k": Arm(1.5)}, of=alone), of=manifest(case("read"), alone))
    other = steps.rows[0].cards[0].steps[1]
    assert (other.case_ids, other.decides, other.outcome) == (("recalled",), False, Outcome.FASTER)


def test_calls_and_confidence_are_the_manifests_and_not_those_of_the_day() -> None:
    runs = [
        measurement({"inhouse.k": Arm(2.0)}, of=case("a", calls=1)),
        measurement({"inhouse.k": Arm()}, of=case("b")),
    ]
    now = manifest(case("a", calls=12), case("b", calls=6))
    found = named(decided(*runs, of=now).rows[0].cards[0].steps[0], "inhouse.k")
    assert found.ratio is not None
    assert found.ratio.estimate == pytest.approx(18 / 12, rel=5e-3)


def test_steps_of_one_model_are_weighted_apart() -> None:
    decode = case("d").model_copy(update={"step": "decode token"})
    cases = (case("a"), decode)
    runs = [measurement({"inhouse.k": Arm(speedup)}, of=of) for of, speedup in zip(cases, (1.2, 0.8), strict=True)]
    steps = decided(*runs, of=manifest(*cases)).rows[0].cards[0].steps
    assert [step.outcome for step in steps] == [Outcome.FASTER, Outcome.SLOWER]


def test_p_value_is_against_the_bar_and_not_against_zero() -> None:
    bar = 1 / 0.99
    p = [
        step_of(measurement({"inhouse.k": Arm(bar)}, seed=seed, noise_percent=0.5)).p_faster or math.nan
        for seed in range(40)
    ]
    assert 0.3 < float(np.mean(p)) < 0.7
    assert (step_of(measurement({"inhouse.k": Arm(1.2)})).p_faster or 1) < 1e-6


def test_cases_that_share_a_measurement_are_weighed_once_with_all_their_calls() -> None:
    """Two twins of one shape tell no more than one: the interval must not shrink."""
    alone = measurement({"inhouse.k": Arm(1.2)}, of=case("a", calls=2))
    single = named(decided(alone, of=manifest(case("a", calls=2))).rows[0].cards[0].steps[0], "inhouse.k")
    both = manifest(case("a", calls=2), case("b", calls=8, dims=case("a").dims))
    shared = named(decided(alone, of=both).rows[0].cards[0].steps[0], "inhouse.k")
    assert shared.ratio == single.ratio
    assert (shared.covered, shared.cases) == (2, 2)
    assert shared.baseline_step_us == pytest.approx(5 * (single.baseline_step_us or 0))


def test_a_case_whose_same_code_differs_widens_the_step_by_its_share() -> None:
    runs = [
        measurement({"inhouse.k": Arm(1.2)}, of=case("a", calls=1), control_speedup=1.03, noise_percent=0.05),
        measurement({"inhouse.k": Arm(1.2)}, of=case("b", calls=2), control_speedup=1.0, noise_percent=0.05),
    ]
    step = step_of(*runs)
    (found,) = step.candidates
    assert found.effect_log_pct is not None
    assert found.outcome is Outcome.FASTER
    width = found.effect_log_pct.upper - found.effect_log_pct.lower
    assert width == pytest.approx(2 * 100 * math.log(1.03) / 3, rel=0.15)
    near = [measurement({"inhouse.k": Arm(1.02)}, control_speedup=1.03, noise_percent=0.05)]
    assert step_of(*near).outcome is Outcome.INCONCLUSIVE
    assert (step_of(*near).p_faster or 0) > 0.5
