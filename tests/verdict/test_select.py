"""Exactly one measurement counts for each case on each card, and what has changed since is said."""

import pytest

from harness.schema.case import Case
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, Outcome, RunStatus
from harness.store import summary_of
from harness.verdict.select import Chosen, choose, staleness
from tests.builders import H200, LAPTOP, PRESENT, Arm, case, decided, environment, manifest, measurement, stored

ARMS = {"inhouse.k": Arm(1.3), "sglang.k": Arm(1.1)}
OTHER_SIZE = case(dims={"N": 2, "C": 512, "T": 5, "H": 32, "W": 32})
LATER = "2026-12-02T10:00:00Z"


def chosen(*measurements: Measurement) -> Chosen:
    by_card = choose(stored(*measurements), manifest(), PRESENT)
    assert len(by_card) == 1
    return next(iter(by_card.values()))["mid", None]


def run(started_at: str = "2026-12-01T10:00:00Z", **changes: object) -> Measurement:
    return measurement(ARMS, started_at=started_at).model_copy(update=changes)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(run(LATER), run(), id="newer"),
        pytest.param(run(), run(LATER, status=RunStatus.THROTTLED), id="valid before newer"),
        pytest.param(run(), measurement(ARMS, twin_speedup=1.05, started_at=LATER), id="A/A that held before newer"),
        pytest.param(run(), measurement({"inhouse.k": Arm(1.5)}, started_at=LATER), id="all candidates before newer"),
        pytest.param(
            run(),
            measurement(
                {**ARMS, "vllm.k": Arm(status=ArmStatus.NOT_INSTALLED, reason="no vllm")}, started_at=LATER
            ).model_copy(update={"status": RunStatus.CRASHED}),
            id="a package that is not installed is no candidate tried",
        ),
        pytest.param(run(status=RunStatus.THROTTLED), run(environment=environment(op_sha256="old")), id="fresh"),
        pytest.param(
            measurement({"inhouse.k": Arm(1.3)}), run(LATER, environment=environment(op_sha256="old")), id="fresh first"
        ),
        pytest.param(run(environment=environment(op_sha256="old")), run(LATER, case=OTHER_SIZE), id="present sizes"),
    ],
)
def test_the_better_measurement_counts_in_either_order(better: Measurement, worse: Measurement) -> None:
    for order in ((better, worse), (worse, better)):
        found = chosen(*order)
        assert found.stored.measurement == better
        assert found.passed_over == 1


@pytest.mark.defence("verdict_two_cards")
def test_two_cards_are_never_pooled() -> None:
    """Each card holds one of the model's two cases: neither can weigh the model."""
    of = manifest(case("a"), case("b"))
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    halves = (measurement(ARMS, of=case("a")), measurement(ARMS, of=case("b"), env=other))
    row = decided(*halves, of=of).rows[0]
    assert {card.device.uuid for card in row.cards} == {H200.uuid, "GPU-2"}
    assert [card.steps[0].outcome for card in row.cards] == [Outcome.NOT_RUN, Outcome.NOT_RUN]
    reasons = {card.device.uuid: card.steps[0].candidates[0].reason for card in row.cards}
    assert reasons == {H200.uuid: "not measured: b", "GPU-2": "not measured: a"}
    whole = decided(*halves, measurement(ARMS, of=case("b")), of=of).rows[0]
    assert [card.steps[0].outcome for card in whole.cards] == [Outcome.FASTER, Outcome.NOT_RUN]


@pytest.mark.defence("verdict_stale")
@pytest.mark.parametrize(
    ("of", "reasons"),
    [
        (run(), ()),
        (run(environment=environment(op_sha256="old")), ("the op's sources have changed since",)),
        (run(environment=environment(triton="3.5.1")), ("measured with triton 3.5.1, the pin is 3.6.0",)),
        (run(environment=environment(torch="2.11.0+cu128")), ()),
        (run(environment=environment(Torch="2.13.0")), ("measured with torch 2.13.0, the pin is 2.11.0",)),
        (run(environment=environment(numpy="1.0")), ()),
        (
            measurement({"sglang.k": Arm(provider_version="0.5.20")}),
            ("measured with sglang 0.5.20, the pin is 0.5.23",),
        ),
        (measurement(ARMS, of=case().rehearsed(), env=environment(LAPTOP, torch="2.13.0")), ()),
    ],
)
def test_what_changed_since_is_said(of: Measurement, reasons: tuple[str, ...]) -> None:
    found = staleness(summary_of(of), case(), PRESENT)
    assert found.reasons == reasons
    assert not found.case_changed


@pytest.mark.parametrize(
    ("present_case", "changed"),
    [
        (case(), False),
        (case(calls=99, model="other"), False),
        (OTHER_SIZE, True),
        (case(dims={"N": 1, "T": 5, "C": 512, "H": 32, "W": 32}), True),
        (case().model_copy(update={"params": {"groups": 16, "eps": 1e-6}}), True),
    ],
)
def test_only_what_shapes_the_times_changes_a_case(present_case: Case, changed: bool) -> None:
    assert staleness(summary_of(run()), present_case, PRESENT).case_changed is changed


@pytest.mark.defence("verdict_case_changed")
def test_evidence_for_other_sizes_is_shown_and_counts_for_nothing() -> None:
    row = decided(measurement(ARMS), of=manifest(OTHER_SIZE)).rows[0]
    assert row.cards[0].comparisons[0].case_changed
    assert row.microbench.symbol == "⏳"
    assert row.cards[0].steps[0].reason == "not measured at the manifest's present sizes: mid"


def test_evidence_no_manifest_asks_for_is_listed() -> None:
    measurements = [
        measurement(ARMS, of=case("gone")),
        measurement(ARMS, of=case("gone"), seed=2),
        measurement(ARMS, context="conv"),
        measurement(ARMS, op="rmsnorm"),
    ]
    found = decided(*measurements)
    assert found.set_aside == (
        f"{H200.key}/groupnorm_silu.jsonl: groupnorm_silu gone (2)",
        f"{H200.key}/groupnorm_silu.jsonl: groupnorm_silu mid in context conv (1)",
        f"{H200.key}/rmsnorm.jsonl: rmsnorm mid (1)",
    )
    assert found.rows[0].cards == ()


def test_cases_of_one_shape_share_their_measurement() -> None:
    """Two models call the op at one shape: it is measured for the first and counts for both, each by its own calls."""
    first = case("a", calls=2)
    second = case("b", model="wan", calls=5, dims=first.dims)
    row = decided(measurement(ARMS, of=first), of=manifest(first, second, deciding=("wan",))).rows[0]
    found = row.cards[0].comparisons
    assert [(one.case.id, one.case.model, one.case.calls, one.measured_as) for one in found] == [
        ("a", "hunyuan-vae", 2, "a"),
        ("b", "wan", 5, "a"),
    ]
    assert [step.outcome for step in row.cards[0].steps] == [Outcome.FASTER, Outcome.FASTER]
    assert row.microbench.symbol == "✅"


def test_cases_and_contexts_come_in_the_manifests_order() -> None:
    first, second = case("z", contexts=("conv", "add")), case("a")
    runs = [
        measurement(ARMS, of=second),
        measurement(ARMS, of=first, context="add"),
        measurement(ARMS, of=first, context="conv"),
        measurement(ARMS, of=first),
    ]
    found = decided(*runs, of=manifest(first, second)).rows[0].cards[0].comparisons
    assert [(one.case.id, one.context) for one in found] == [("z", None), ("z", "conv"), ("z", "add"), ("a", None)]
