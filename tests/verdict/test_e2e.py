"""End-to-end cells and the row's rule: both baselines, the ceiling, the twin, requests, Holm, regressions."""

from typing import Any

import pytest

from harness.schema.claims import Claims
from harness.schema.e2e_verdict import CellVerdict, Tier, Verdict
from harness.schema.process import ProcessRecord
from harness.schema.verdict import Cell
from harness.schema.vocabulary import ArmStatus, RunStatus, Tracker
from harness.schema.workload import Composition, Part
from harness.verdict.e2e import judge_cells
from harness.verdict.e2e_rows import e2e_cell
from harness.verdict.select import Present
from tests.builders import H200, LAPTOP, case, environment, manifest
from tests.e2e_builders import CEILING, COMPONENT, DYNAMIC, SLOWED, STATIC, TWIN, process, sequence, stored, workload

NOW = Present(
    op_sha256={"groupnorm_silu": "op-sources"},
    wiring_sha256={"groupnorm_silu": "wirings"},
    pins={"diffusers": "0.42.1"},
)
K = "inhouse.k"


def cells(*records: ProcessRecord, steps: tuple[int, ...] = (50,)) -> tuple[CellVerdict, ...]:
    named = {"toy-dit": workload(steps=steps), "toy-vae": workload("toy-vae", steps=()), "other": workload("other")}
    return judge_cells(stored(*records), named, NOW)


def cell(*records: ProcessRecord, **more: Any) -> CellVerdict:
    (found,) = [one for one in cells(*records, **more) if one.workload == "toy-dit"]
    return found


def row(*records: ProcessRecord, deciding: tuple[str, ...] = ("toy-dit",)) -> Cell:
    of = manifest(case("a", model="toy-dit")).model_copy(update={"deciding_models": deciding})
    return e2e_cell(of, Claims(rows={}), cells(*records))


VAE = sequence({}, workload="toy-vae", base_ms=200.0)


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(3.0, Verdict.WIN), (0.0, Verdict.NO_WIN), (-3.0, Verdict.NO_WIN), (1.0, Verdict.INCONCLUSIVE)],
)
def test_a_verdict_follows_the_gain(gain: float, verdict: Verdict) -> None:
    found = cell(*sequence({K: gain}, 4))
    assert found.verdict is verdict
    assert found.leader == K
    (arm,) = found.candidates
    assert arm.gain_pct is not None
    assert arm.gain_pct.estimate == pytest.approx(gain, abs=0.15)
    assert arm.to_static is not None
    assert arm.to_static.regression is (gain < -1)


@pytest.mark.defence("e2e_both_baselines")
def test_a_win_must_hold_against_the_faster_baseline() -> None:
    found = cell(*sequence({K: 3.0, DYNAMIC: 2.8}))
    assert found.candidates[0].to_static is not None
    assert found.candidates[0].to_static.verdict is Verdict.WIN
    assert found.verdict is Verdict.NO_WIN
    assert found.candidates[0].gain_pct is not None
    assert found.candidates[0].gain_pct.estimate < 0.5


def test_where_the_dynamic_baseline_was_beaten_the_static_one_decides() -> None:
    records = sequence({K: 3.0, DYNAMIC: 2.8}, statuses={DYNAMIC: ArmStatus.BEATEN})
    found = cell(*records, *VAE)
    assert (found.verdict, found.finished) == (Verdict.WIN, True)
    assert found.candidates[0].to_dynamic is None
    assert (found.dynamic_over_static, found.dynamic_left_out) == (None, "broke")
    assert found.compositions[0].figures.verdict is Verdict.WIN
    both = cell(*sequence({K: 3.0}))
    assert (both.dynamic_over_static, both.dynamic_left_out) == (pytest.approx(1.02, abs=0.01), "")


@pytest.mark.defence("e2e_decided_verdict")
def test_a_decided_candidate_keeps_the_verdict_of_the_looks_it_had() -> None:
    gains = {K: 0.0, "inhouse.open": 1.0, "inhouse.fast": 5.0}
    whole = sequence(gains, 4)
    out = [{}, {}, {K: ArmStatus.DECIDED}, {K: ArmStatus.DECIDED, "inhouse.fast": ArmStatus.DECIDED}]
    found = cell(*(process(gains, number, statuses=left_out) for number, left_out in enumerate(out)))
    lost, near, fast = found.candidates
    assert [(one.verdict, one.reason) for one in found.candidates] == [
        (Verdict.NO_WIN, ""), (Verdict.INCONCLUSIVE, ""), (Verdict.WIN, ""),
    ]  # fmt: skip
    assert [one.to_static.processes for one in found.candidates if one.to_static] == [2, 4, 3]
    assert (found.finished, found.p_max, found.leader) == (True, 4, "inhouse.fast")
    timed_to_the_end = cell(*whole).candidates
    assert [one.verdict for one in timed_to_the_end] == [lost.verdict, near.verdict, fast.verdict]
    assert timed_to_the_end[0].to_static == lost.to_static, "processes after the look that decided change nothing"


@pytest.mark.defence("e2e_aa")
def test_nothing_counts_when_the_twin_can_be_told_from_the_baseline() -> None:
    found = cell(*sequence({K: 5.0, TWIN: 2.0}))
    assert found.verdict is Verdict.INVALID
    assert found.candidates[0].reason.startswith("A/A: process 0: A/A differs from itself by +2.0")


@pytest.mark.defence("e2e_ceiling")
def test_a_gain_above_the_measured_ceiling_is_invalid() -> None:
    found = cell(*sequence({K: 6.0, CEILING: 4.0}))
    assert found.verdict is Verdict.INVALID
    assert "more than leaving the op out gains" in found.candidates[0].reason
    fine = cell(*sequence({K: 3.0, CEILING: 4.0}, op_bytes=4_000_000_000))
    assert fine.verdict is Verdict.WIN
    assert fine.roofline_pct == pytest.approx(1.0, abs=0.01)
    assert fine.candidates[0].share_of_possible == pytest.approx(3.0 / (4.0 - 1.0), abs=0.05)


@pytest.mark.parametrize("failed", [(0,), (0, 1, 2)])
def test_no_win_without_the_dynamic_baseline_unless_it_is_beaten(failed: tuple[int, ...]) -> None:
    def records(gain: float) -> list[ProcessRecord]:
        return [
            process({K: gain}, number, statuses={DYNAMIC: ArmStatus.CRASHED} if number in failed else {})
            for number in range(3)
        ]

    found = cell(*records(3.0))
    assert found.verdict is Verdict.INVALID
    assert found.candidates[0].reason == (
        "dynamic=True, which a win must hold against, failed in process 0: CRASHED: broke"
    )
    assert row(*records(3.0), *VAE).symbol is Tracker.IN_PROGRESS
    assert cell(*records(0.0)).verdict is Verdict.NO_WIN, "the static baseline is enough for that"


def test_a_ceiling_that_a_candidate_exceeds_closes_nothing() -> None:
    records = sequence({K: 3.0, CEILING: 0.2})
    assert not cell(*records).closed_by_ceiling
    assert row(*records, *VAE).symbol is Tracker.IN_PROGRESS


def test_a_cell_is_open_while_what_might_win_in_it_is_invalid() -> None:
    both = {K: 6.0, "inhouse.other": 0.0, CEILING: 4.0}
    found = cell(*sequence(both))
    assert (found.leader, found.verdict) == ("inhouse.other", Verdict.INVALID)
    of = row(*sequence(both), *VAE)
    assert of.symbol is Tracker.IN_PROGRESS
    assert any(f"{K} INVALID, gains +6" in note for note in of.notes)
    won = cell(*sequence({**both, "inhouse.other": 3.0}))
    assert (won.leader, won.verdict) == ("inhouse.other", Verdict.WIN)


@pytest.mark.defence("e2e_positive")
def test_the_baseline_must_win_against_itself_slowed() -> None:
    on = {"settings": {"slowdown_pct": 2.0}}
    found = cell(*sequence({K: 3.0, SLOWED: -2.0}, **on))
    assert found.positive is not None
    assert found.positive.verdict is Verdict.WIN
    assert found.positive.gain_pct.estimate == pytest.approx(2 / 1.02, abs=0.15)
    assert found.verdict is Verdict.WIN
    assert [arm.id for arm in found.candidates] == [K]
    blind = cell(*sequence({K: 3.0, SLOWED: 0.0}, **on))
    assert blind.verdict is Verdict.INVALID
    assert blind.candidates[0].reason.startswith("the baseline slowed by 2 % reads ")
    assert cell(*sequence({K: 3.0})).positive is None


def test_one_process_says_no_more_than_processes_differ_by() -> None:
    found = cell(*sequence({K: 0.2, CEILING: 0.6}))
    assert found.ceiling_pct is not None
    assert found.ceiling_pct.upper - found.ceiling_pct.estimate > 0.4
    assert not found.closed_by_ceiling
    assert cell(*sequence({K: 0.1, CEILING: 0.2})).closed_by_ceiling


def test_a_broken_arm_is_invalid_and_one_not_installed_was_not_run() -> None:
    broken = cell(*sequence({K: 3.0}, statuses={K: ArmStatus.FELL_BACK}))
    assert (broken.verdict, broken.candidates[0].reason) == (Verdict.INVALID, "FELL_BACK: broke")
    absent = cell(*sequence({K: 3.0}, statuses={K: ArmStatus.NOT_INSTALLED}))
    assert (absent.verdict, absent.candidates[0].verdict) == (Verdict.NOT_RUN, Verdict.NOT_RUN)


def test_a_cell_that_could_not_be_measured_says_why() -> None:
    found = cell(process({K: 3.0}, status=RunStatus.THROTTLED))
    assert (found.verdict, found.reason) == (Verdict.INVALID, "process 0: THROTTLED: the reason")


def test_a_request_weighs_the_component_by_its_share() -> None:
    found = cell(*sequence({K: 3.0}), *VAE, steps=(2, 50))
    few, many = found.compositions
    assert few.share == pytest.approx(0.5, abs=0.01)
    assert few.figures.gain_pct.estimate == pytest.approx(1.5, abs=0.1)
    assert many.share == pytest.approx(50 * 100 / (50 * 100 + 200), abs=0.005)
    assert many.figures.verdict is Verdict.WIN
    assert found.unmeasured_parts == ()
    alone = cell(*sequence({K: 3.0}))
    assert alone.compositions == ()
    assert alone.unmeasured_parts == ("toy-vae/step",)
    assert dict(alone.share_table)[50.0] == pytest.approx(1.5, abs=0.1)


def test_a_decode_is_judged_in_the_requests_of_other_models_that_it_is_part_of() -> None:
    decode = sequence({K: 30.0}, workload="toy-vae", base_ms=200.0)
    (found,) = [one for one in cells(*sequence({}), *decode, steps=(2,)) if one.workload == "toy-vae"]
    (request,) = found.compositions
    assert request.share == pytest.approx(0.5, abs=0.01)
    assert request.figures.gain_pct.estimate == pytest.approx(15.0, abs=0.2)
    larger = sequence({K: 60.0}, workload="toy-vae", base_ms=200.0)  # 2.3 % of 50 steps and a decode
    assert row(*sequence({}), *larger, deciding=("toy-vae",)).symbol is Tracker.POSITIVE


def test_fewer_layers_stand_for_all_of_them_in_a_request() -> None:
    """Ten runs of 4 layers take the time of one of 40: 2 steps of 1000 ms and a decode of 200 ms."""
    part = COMPONENT.model_copy(update={"id": "step-4-layers", "stands_for": "step", "depth_ratio": 10})
    found = cell(*sequence({K: 3.0}, component=part), *VAE, steps=(2,))
    (request,) = found.compositions
    assert request.share == pytest.approx(2000 / 2200, abs=0.005)
    assert request.figures.gain_pct.estimate == pytest.approx(3.0 * 2000 / 2200, abs=0.1)
    stand_in = sequence({}, component=part)
    decode = sequence({K: 30.0}, workload="toy-vae", base_ms=200.0)
    (vae,) = [one for one in cells(*stand_in, *decode, steps=(2,)) if one.workload == "toy-vae"]
    assert vae.compositions[0].fixed_ms == pytest.approx(2000, rel=0.01)
    unknown = sequence({K: 3.0}, component=part.model_copy(update={"depth_ratio": None}))
    assert cell(*unknown, *VAE, steps=(2,)).compositions == ()


def test_processes_of_two_sequences_are_never_joined() -> None:
    one = sequence({K: 3.0}, 1, sequence="s1")
    two = sequence({K: 3.0}, 3, sequence="s2")
    assert cell(*one, *two).sequence == "s2"
    assert cell(*two, *one).sequence == "s2"


def test_quality_gives_the_tier() -> None:
    assert cell(*sequence({K: 3.0})).candidates[0].tier is Tier.EXTRA_HIGH


# -- the row -----------------------------------------------------------------------------------------------------------


def test_a_row_is_won_by_a_request_and_not_by_a_component() -> None:
    assert row(*sequence({K: 3.0})).symbol is Tracker.IN_PROGRESS
    won = row(*sequence({K: 3.0}), *VAE)
    assert won.symbol is Tracker.POSITIVE
    assert won.notes[0].startswith("inhouse.k wins toy-dit, 50 steps and a decode, on NVIDIA H200: +2.")


def test_a_row_is_lost_only_when_every_deciding_model_was_tested() -> None:
    nothing = sequence({K: 0.0})
    assert row(*nothing, *VAE).symbol is Tracker.NEGATIVE
    open_ = row(*nothing, *VAE, deciding=("toy-dit", "other"))
    assert open_.symbol is Tracker.IN_PROGRESS
    assert "not run: other (make e2e OP=groupnorm_silu MODEL=other)" in open_.notes


def test_what_makes_candidates_invalid_alike_is_said_once() -> None:
    broken = {K: ArmStatus.FELL_BACK, "inhouse.other": ArmStatus.FELL_BACK}
    notes = row(*sequence({K: 3.0, "inhouse.other": 3.0}, statuses=broken)).notes
    assert "toy-dit (denoise step): INVALID, inhouse.k, inhouse.other: FELL_BACK: broke" in notes


def test_a_model_over_several_ranks_that_was_not_run_says_what_it_needs() -> None:
    pair = case("b", model="other").model_copy(update={"ranks": 2})
    of = manifest(case("a", model="toy-dit"), pair).model_copy(update={"deciding_models": ("toy-dit", "other")})
    notes = e2e_cell(of, Claims(rows={}), cells(*sequence({K: 0.0}), *VAE)).notes
    assert "not run: other; needs 2 devices of one host (make e2e OP=groupnorm_silu MODEL=other)" in notes


def test_a_sequence_broken_off_on_one_card_yields_to_one_finished_on_another() -> None:
    other = environment(H200.model_copy(update={"uuid": "GPU-other"}))
    half = sequence({K: 0.0}, 1, env=other)
    assert not cell(*half).finished
    whole = sequence({K: 0.0})
    assert row(*whole, *VAE).symbol is Tracker.NEGATIVE
    both = row(*half, *whole, *VAE)
    assert both.symbol is Tracker.NEGATIVE
    assert both.notes == row(*whole, *VAE).notes
    assert row(*half, *VAE).symbol is Tracker.IN_PROGRESS


def test_a_model_is_tested_when_every_part_of_its_requests_is() -> None:
    """Prefill and decode of one model: the row stays open while one of them was never measured."""
    text = workload("toy-dit", partner="toy-dit", steps=())
    both = Composition(
        id="chat",
        what="a prefill and 9 tokens",
        parts=(Part(component="toy-dit/step", times=1), Part(component="toy-dit/decode", times=9)),
        excluded="encoders",
    )
    named = {"toy-dit": text.model_copy(update={"compositions": (both,)})}
    of = manifest(case("a", model="toy-dit")).model_copy(update={"deciding_models": ("toy-dit",)})
    prefill, decode = (
        sequence({K: 0.0}, component=COMPONENT.model_copy(update={"id": name})) for name in ("step", "decode")
    )
    half = e2e_cell(of, Claims(rows={}), judge_cells(stored(*prefill), named, NOW))
    assert half.symbol is Tracker.IN_PROGRESS
    assert "not run: toy-dit/decode (make e2e OP=groupnorm_silu MODEL=toy-dit/decode)" in half.notes
    whole = e2e_cell(of, Claims(rows={}), judge_cells(stored(*prefill, *decode), named, NOW))
    assert whole.symbol is Tracker.NEGATIVE


@pytest.mark.defence("e2e_regression")
def test_a_win_here_is_no_win_where_the_same_kernel_slows_another_model() -> None:
    slower = sequence({K: -3.0}, workload="other")
    found = row(*sequence({K: 3.0}), *VAE, *slower)
    assert found.symbol is Tracker.IN_PROGRESS
    assert any("slows other down" in note for note in found.notes)


def test_a_rehearsal_on_a_cpu_decides_nothing() -> None:
    found = row(
        *sequence({K: 3.0}, env=environment(LAPTOP)), *sequence({}, workload="toy-vae", env=environment(LAPTOP))
    )
    assert found.symbol is Tracker.UNCLAIMED


def test_evidence_of_other_sources_is_stale() -> None:
    found = row(*sequence({K: 3.0}, env=environment(op_sha256="old")), *VAE)
    assert found.stale
    assert "stale: the op's sources have changed since" in found.notes


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"wiring_sha256": "old"}, "the op's wirings have changed since"),
        ({"library": "diffusers 0.41.0"}, "measured with diffusers 0.41.0, the pin is 0.42.1"),
    ],
)
def test_evidence_of_other_wirings_or_model_code_is_stale(changed: dict[str, str], reason: str) -> None:
    records = [one.model_copy(update=changed) for one in sequence({K: 3.0})]
    assert cell(*records).stale == (reason,)
    assert cell(*sequence({K: 3.0})).stale == ()


def test_what_makes_evidence_stale_is_one_note() -> None:
    found = row(
        *(
            one.model_copy(update={"wiring_sha256": "old"})
            for one in sequence({K: 3.0}, env=environment(op_sha256="old"))
        )
    )
    assert "stale: the op's sources have changed since; the op's wirings have changed since" in found.notes


@pytest.mark.defence("e2e_best_of_many")
def test_the_best_of_many_must_win_as_one_of_many() -> None:
    """A leader picked on the very processes that judge it: its p-value counts once for each that could have led."""
    alone = row(*sequence({K: 1.45}, noise_pct=0.1), *VAE)
    assert alone.symbol is Tracker.POSITIVE
    others = {f"inhouse.other{n}": 1.0 for n in range(30)}
    many = row(*sequence({K: 1.45, **others}, noise_pct=0.1), *VAE)
    assert many.symbol is Tracker.IN_PROGRESS


def test_the_baseline_is_one_of_the_arms() -> None:
    assert {arm.id for arm in sequence({K: 1.0})[0].arms} == {STATIC, DYNAMIC, TWIN, K}
