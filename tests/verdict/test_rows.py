"""The cells: what turns one ✅, ❌ or —, what keeps it open, and what a claim may say."""

import re
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.schema.claims import Claims, load_claims
from harness.schema.manifest import Manifest
from harness.schema.measurement import Measurement
from harness.schema.verdict import Cell
from harness.schema.vocabulary import ArmStatus, Outcome, RunStatus, Tracker
from harness.verdict import decide
from tests.builders import H200, LAPTOP, NO_CLAIMS, PRESENT, Arm, case, decided, environment, manifest, measurement
from tests.e2e_builders import sequence, workload
from tests.e2e_builders import stored as stored_processes

WIN = {"inhouse.k": Arm(1.3)}
LOSS = {"inhouse.k": Arm(0.8)}
TIE = {"inhouse.k": Arm(1.0)}
WAN = case("w", model="wan")
TWO_MODELS = manifest(case(), WAN, deciding=("hunyuan-vae", "wan"))
OTHER_CARD = environment(H200.model_copy(update={"uuid": "GPU-2"}))


def cell(*measurements: Measurement, of: Manifest | None = None, claims: Claims = NO_CLAIMS) -> Cell:
    return decided(*measurements, of=of, claims=claims).rows[0].microbench


@pytest.mark.parametrize(
    ("measurements", "of", "symbol"),
    [
        pytest.param([], manifest(), Tracker.UNCLAIMED, id="no evidence"),
        pytest.param([measurement(WIN)], manifest(), Tracker.POSITIVE, id="win"),
        pytest.param([measurement(TIE)], manifest(), Tracker.NEGATIVE, id="tie"),
        pytest.param([measurement(LOSS)], manifest(), Tracker.NEGATIVE, id="loss"),
        pytest.param([measurement({})], manifest(), Tracker.NO_CANDIDATE, id="no candidate"),
        pytest.param([measurement(WIN)], TWO_MODELS, Tracker.POSITIVE, id="one of two models is enough to win"),
        pytest.param([measurement(LOSS)], TWO_MODELS, Tracker.IN_PROGRESS, id="a loss needs all deciding models"),
        pytest.param([measurement(LOSS), measurement(TIE, of=WAN)], TWO_MODELS, Tracker.NEGATIVE, id="all lose"),
        pytest.param(
            [measurement(LOSS), measurement(WIN, of=WAN)],
            manifest(case(), WAN),
            Tracker.NEGATIVE,
            id="a model that does not decide does not win the row",
        ),
        pytest.param(
            [measurement(LOSS, status=RunStatus.THROTTLED)], manifest(), Tracker.IN_PROGRESS, id="invalid stays open"
        ),
        pytest.param(
            [measurement({"inhouse.k": Arm(1.01, noise_percent=0.5)})], manifest(), Tracker.IN_PROGRESS, id="at the bar"
        ),
        pytest.param(
            [measurement(WIN, env=environment(LAPTOP), of=case().rehearsed())],
            manifest(),
            Tracker.UNCLAIMED,
            id="a rehearsal is no evidence",
        ),
    ],
)
def test_symbol(measurements: list[Measurement], of: Manifest, symbol: Tracker) -> None:
    assert cell(*measurements, of=of).symbol is symbol


def test_a_candidate_that_is_not_installed_keeps_a_loss_open() -> None:
    missing = Arm(status=ArmStatus.NOT_INSTALLED, reason="sglang is not installed; run make providers")
    found = cell(measurement({**LOSS, "sglang.k": missing}))
    assert found.symbol is Tracker.IN_PROGRESS
    assert "sglang.k: sglang is not installed; run make providers" in found.notes[0]
    assert cell(measurement({**WIN, "sglang.k": missing})).symbol is Tracker.POSITIVE


def test_a_candidate_that_fails_its_gate_is_out_and_closes_nothing_alone() -> None:
    failed = Arm(status=ArmStatus.GATE_FAILED, reason="12 elements")
    assert cell(measurement({**LOSS, "sglang.k": failed})).symbol is Tracker.NEGATIVE
    assert cell(measurement({"sglang.k": failed})).symbol is Tracker.IN_PROGRESS


def test_notes_say_who_leads_by_how_much() -> None:
    assert cell(measurement(WIN)).notes[0].startswith("hunyuan-vae (decode of one 4x32x32 latent tile): inhouse.k 1.30")
    assert cell(measurement(WIN)).notes[0].endswith("FASTER")


@pytest.mark.defence("verdict_context")
def test_a_leader_that_loses_in_context_is_named_in_the_matrix() -> None:
    of = case(contexts=("conv",))
    within = measurement({"inhouse.k": Arm(0.9), "other.k": Arm(0.8)}, of=of, context="conv")
    found = cell(measurement({"inhouse.k": Arm(1.3), "other.k": Arm(1.1)}, of=of), within, of=manifest(of))
    assert found.symbol is Tracker.POSITIVE
    assert len(found.notes) == 2
    assert found.notes[1].startswith("inhouse.k loses in context conv (1 of 1 cases, at worst 0.90")


def test_the_best_candidate_of_a_context_alone_is_named_where_it_gains() -> None:
    first, second = case("a", contexts=("conv",)), case("b", contexts=("conv",))
    runs = [
        measurement({"inhouse.k": Arm(1.0)}, of=first, noise_percent=0.1),
        measurement({"inhouse.k": Arm(1.0)}, of=second, noise_percent=0.1),
        # `k` is timed alone too; `once` gains most, but in one case; `own` gains in both
        measurement({"inhouse.k": Arm(1.9), "x.own": Arm(1.2), "x.once": Arm(2.0)}, of=first, context="conv"),
        measurement({"inhouse.k": Arm(1.9), "x.own": Arm(1.3), "x.once": Arm(0.9)}, of=second, context="conv"),
    ]
    found = cell(*runs, of=manifest(first, second))
    assert found.symbol is Tracker.NEGATIVE
    (said,) = [note for note in found.notes if "context" in note]
    assert re.match(r"x\.own, for context conv, gains there \(2 of 2 cases, at best 1\.(29|30)\d×\)", said)


def test_a_context_whose_case_was_not_measured_alone_gains_nothing() -> None:
    of = case(contexts=("conv",))
    within = measurement({"x.own": Arm(1.5)}, of=of, context="conv")
    assert not [note for note in cell(within, of=manifest(of)).notes if "gains there" in note]


@pytest.mark.defence("verdict_holm")
def test_a_win_must_hold_after_holm_over_the_deciding_models() -> None:
    """Barely faster on one of eight models: p is under 2.5 % and over 2.5 % / 8."""
    cases = [case(f"c{n}", model=f"m{n}") for n in range(8)]
    of = manifest(*cases, deciding=tuple(f"m{n}" for n in range(8)))
    for seed in range(60):
        barely = measurement({"inhouse.k": Arm(1.0118, noise_percent=0.3)}, of=cases[0], seed=seed)
        p = decided(barely, of=of).rows[0].cards[0].steps[0].p_faster
        if p is not None and 0.025 / 8 < p < 0.02:
            break
    else:
        pytest.fail("no seed gives a p-value in between")
    row = decided(barely, *(measurement(TIE, of=other) for other in cases[1:]), of=of).rows[0]
    assert row.cards[0].steps[0].outcome is Outcome.INCONCLUSIVE
    assert "Holm" in row.cards[0].steps[0].reason
    assert row.microbench.symbol is Tracker.IN_PROGRESS
    assert cell(barely, of=manifest(cases[0], deciding=("m0",))).symbol is Tracker.POSITIVE


def test_stale_evidence_keeps_its_symbol_and_says_so() -> None:
    found = cell(measurement(WIN, env=environment(op_sha256="old")))
    assert (found.symbol, found.stale) == (Tracker.POSITIVE, True)
    assert "stale: the op's sources have changed since" in found.notes


def test_fresh_evidence_of_one_card_goes_before_stale_evidence_of_another() -> None:
    stale_win = measurement(WIN, env=environment(op_sha256="old"))
    row = decided(stale_win, measurement(LOSS, env=OTHER_CARD)).rows[0]
    assert (row.microbench.symbol, row.microbench.stale) == (Tracker.NEGATIVE, False)
    assert [card.device.uuid for card in row.cards] == ["GPU-2", H200.uuid]


def test_cards_that_disagree_are_both_named() -> None:
    found = cell(measurement(WIN), measurement(LOSS, env=OTHER_CARD))
    assert found.symbol is Tracker.POSITIVE
    assert "NVIDIA H200 (card GPU-2) says ❌" in found.notes


def claims(tmp_path: Path, tracker: str, state: str) -> Claims:
    file = tmp_path / "claims.yaml"
    link = "" if state == "claimed" else "\n      link: https://example.com/1"
    file.write_text(f'rows:\n  groupnorm_silu:\n    {tracker}:\n      owner: "@ada"\n      state: {state}{link}\n')
    return load_claims(file)


def test_claims_fill_the_cells_without_evidence(tmp_path: Path) -> None:
    for tracker in ("ubench", "e2e", "pr"):
        row = decided(claims=claims(tmp_path, tracker, "in_progress")).rows[0]
        cells = {"ubench": row.microbench, "e2e": row.e2e, "pr": row.pr}
        assert cells.pop(tracker) == Cell(symbol=Tracker.IN_PROGRESS, owner="@ada", link="https://example.com/1")
        assert set(cells.values()) == {Cell(symbol=Tracker.UNCLAIMED)}


@pytest.mark.defence("verdict_claims")
@pytest.mark.parametrize(
    ("tracker", "measurements", "message"),
    [
        ("ubench", [], r"claims.yaml:3: the µbench .* `done` .*nothing was measured on a GPU"),
        ("ubench", [measurement(LOSS, status=RunStatus.THROTTLED)], r"claims.yaml:3: .*THROTTLED"),
        ("e2e", [measurement(WIN)], r"claims.yaml:3: the E2E .*nothing was measured end to end"),
        ("pr", [], r"claims.yaml:3: the PR .*its E2E is 🙋"),
    ],
)
def test_a_claim_that_contradicts_the_evidence_is_an_error(
    tmp_path: Path, tracker: str, measurements: list[Measurement], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        decided(*measurements, claims=claims(tmp_path, tracker, "done"))


@pytest.mark.parametrize(("arms", "symbol"), [(WIN, Tracker.POSITIVE), (LOSS, Tracker.NEGATIVE)])
def test_a_claim_that_agrees_is_linked(tmp_path: Path, arms: dict[str, Arm], symbol: Tracker) -> None:
    found = decided(measurement(arms), claims=claims(tmp_path, "ubench", "done")).rows[0].microbench
    assert (found.symbol, found.link, found.owner) == (symbol, "https://example.com/1", "@ada")


@pytest.mark.parametrize(("gain", "symbol"), [(3.0, Tracker.POSITIVE), (0.0, Tracker.NEGATIVE)])
@pytest.mark.parametrize("tracker", ["e2e", "pr"])
def test_what_follows_the_end_to_end_verdict_is_linked(
    tmp_path: Path, tracker: str, gain: float, symbol: Tracker
) -> None:
    of = manifest(case("a", model="toy-dit"), deciding=("toy-dit",))
    processes = stored_processes(*sequence({"inhouse.k": gain}), *sequence({}, workload="toy-vae", base_ms=200.0))
    named = {"toy-dit": workload(), "toy-vae": workload("toy-vae", steps=())}
    made = decide([], {of.op: of}, claims(tmp_path, tracker, "done"), PRESENT, processes, named).rows[0]
    found = made.e2e if tracker == "e2e" else made.pr
    assert (found.symbol, found.link, found.owner) == (symbol, "https://example.com/1", "@ada")


def test_a_claim_on_a_row_without_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row `groupnorm_silu` has no manifest; choose from rmsnorm"):
        decided(of=manifest(op="rmsnorm"), claims=claims(tmp_path, "pr", "claimed"))
