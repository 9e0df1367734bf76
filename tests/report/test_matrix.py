"""The matrix: the RFC's columns, a symbol with its proof in each decided cell, one short note a row, on each GPU."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from harness.report import matrix
from harness.report.matrix import matrix_markdown
from harness.schema.claims import load_claims
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import ArmStatus, RunStatus, Tracker
from tests.builders import H200, Arm, case, decided, environment, manifest, measurement
from tests.e2e_builders import TWIN, sequence
from tests.report.golden import ROOT
from tests.report.rendered import ANY_TEXT, GITHUB, flat, shown, tables
from tests.report.rows import CASE, K, verdicts

EVIDENCE = "../results/made-up-gpu-132sm-141gib-driver570/groupnorm_silu.jsonl"
OTHER_GPU = environment(H200.model_copy(update={"key": "nvidia-b200-148sm-180gib-driver570", "name": "NVIDIA B200"}))


def lines(of: Verdicts, **more: str) -> list[str]:
    return matrix_markdown(of, **more).splitlines()


def test_the_golden_matrix_is_the_rfcs_table_with_proof_in_every_decided_cell() -> None:
    made = (ROOT / "reports" / "matrix.md").read_text(encoding="utf-8")
    (rows,) = tables(made, owner="@ada")
    assert rows == [
        ["Type", "Op", "Triton ref", "Existing CUDA ref", "µbench", "E2E", "PR"],
        [
            "Fused",
            "GroupNorm + SiLU",
            "upstream group_norm_silu",
            "—",
            "✅ 1 of 1 steps · evidence (1)",
            "⏳ @ada (1)",
            "🙋",
        ],
    ]
    assert f"✅ [1 of 1 steps](groupnorm_silu.md) · [evidence]({EVIDENCE}) (1)" in made
    assert (ROOT / "reports" / EVIDENCE).is_file()
    notes = [line for line in made.splitlines() if re.match(r"\d+\. ", line)]
    assert notes == [
        "1. **GroupNorm + SiLU.** µbench on Made-up GPU: `inhouse.gn` toy-vae 1.357× [1.355, 1.358]; `inhouse.gn` "
        "loses in context conv (1 of 1 cases, at worst 0.900×). @&#8203;ada: on a made-up GPU."
    ]
    assert "static shapes; 1 card, measured 2026-12-01 by harness sources " in made
    assert "Scope: Made-up GPU (132 SM, 141 GiB, L2 60.0 MiB); driver 570.86.15, CUDA 13.0, torch 2.11.0+cu130" in made


def test_a_row_has_one_short_note_however_many_models_decide() -> None:
    """Nine footnotes in one cell are nothing that a maintainer pastes."""
    models = [f"model-{n}" for n in range(8)]
    cases = [case(f"c{n}", model=model) for n, model in enumerate(models)]
    runs = [measurement({K: Arm(1.5)}, of=one) for one in cases[:3]]
    (row, note) = (
        line
        for line in lines(decided(*runs, of=manifest(*cases, deciding=tuple(models))))
        if line.startswith(("| Fused", "1. "))
    )
    assert "✅ [3 of 8 steps](groupnorm_silu.md)" in row
    assert row.count("(1)") == 1
    assert "(2)" not in row
    assert note.count(K) == 1
    assert re.search(r"model-0 1\.\d+×", note)
    assert "not measured: model-3, model-4, model-5, model-6, model-7 (`make bench OP=groupnorm_silu`)" in note


def test_steps_of_one_model_stand_together() -> None:
    first, second, third = case("a"), case("b"), case("c")
    second = second.model_copy(update={"step": "another step"})
    third = third.model_copy(update={"step": "a third step"})
    runs = [measurement({K: Arm(1.5)}, of=first), measurement({K: Arm(0.9)}, of=second, noise_percent=0.1)]
    made = matrix_markdown(decided(*runs, of=manifest(first, second, third)))
    assert re.search(r"`inhouse.k` hunyuan-vae 1\.\d+× \[[\d., ]+\] and 0\.\d+× \[[\d., ]+\] SLOWER;", made)
    assert "not measured: hunyuan-vae (1 of 3 steps)" in made


def test_what_is_open_says_why() -> None:
    hot = decided(measurement({K: Arm(1.5)}, status=RunStatus.THROTTLED, reason="hot"))
    assert "| ⏳ [0 of 1 steps](groupnorm_silu.md) · [evidence](" in matrix_markdown(hot)
    assert "hunyuan-vae (decode of one 4x32x32 latent tile): INVALID, THROTTLED: hot (on mid)." in matrix_markdown(hot)
    noisy = decided(measurement({K: Arm(1.01, noise_percent=3.0)}))
    assert "INCONCLUSIVE (the interval reaches over ±1 %; more seconds per arm would narrow it)" in matrix_markdown(
        noisy
    )
    failed = decided(measurement({K: Arm(status=ArmStatus.GATE_FAILED, reason="12 off")}))
    assert "INVALID, inhouse.k: GATE_FAILED: 12 off" in matrix_markdown(failed)


def test_stale_evidence_and_cards_that_disagree_are_said() -> None:
    old = decided(measurement({K: Arm(1.5)}, env=environment(op_sha256="old")))
    made = matrix_markdown(old)
    assert "| ✅ (stale) [1 of 1 steps]" in made
    assert "; stale: the op's sources have changed since." in made
    other = environment(H200.model_copy(update={"uuid": "GPU-2"}))
    two = decided(measurement({K: Arm(1.5)}), measurement({K: Arm(0.9)}, env=other))
    assert "; another NVIDIA H200 says ❌." in matrix_markdown(two)


@pytest.mark.parametrize(
    ("gain", "symbol", "note"),
    [
        (3.0, "✅", "inhouse.k wins toy-dit, 50 steps and a decode, on NVIDIA H200: +2."),
        (0.0, "❌", "toy-dit (denoise step): inhouse.k"),
        (1.0, "⏳", "INCONCLUSIVE"),
    ],
)
def test_an_end_to_end_cell_names_model_code_and_models(gain: float, symbol: str, note: str) -> None:
    made = matrix_markdown(verdicts(gain))
    assert (
        f"| {symbol} [1 of 1 models](e2e.md) · [evidence](../results/{H200.key}/e2e/groupnorm_silu.jsonl) (1) | 🙋 |"
    ) in made
    (line,) = [line for line in made.splitlines() if line.startswith("1. ")]
    assert " E2E on NVIDIA H200, diffusers 0.42.1 model code, random weights: " in line
    assert note in line
    assert "E2E diffusers 0.42.1 model code, random weights, baselines native + torch.compile, static and" in made


def test_deciding_models_that_did_not_run_are_named_once() -> None:
    made = matrix_markdown(verdicts(3.0, deciding=("toy-dit", "x", "y")))
    assert "[1 of 3 models](e2e.md)" in made
    assert made.count("not run: x, y (make e2e OP=groupnorm_silu).") == 1


def test_a_model_whose_cell_is_invalid_has_no_verdict() -> None:
    made = matrix_markdown(verdicts(3.0, others={TWIN: 4.0}))
    assert "| ⏳ [0 of 1 models](e2e.md)" in made


def test_links_can_be_made_absolute_for_an_issue() -> None:
    made = matrix_markdown(verdicts(3.0), "https://example.com/blob/main")
    assert "(https://example.com/blob/main/reports/groupnorm_silu.md)" in made
    assert "(https://example.com/blob/main/reports/e2e.md)" in made
    assert f"(https://example.com/blob/main/results/{H200.key}/groupnorm_silu.jsonl)" in made
    assert "](.." not in made


def test_each_kind_of_gpu_has_a_matrix_of_its_own() -> None:
    both = decided(measurement({K: Arm(1.5)}), measurement({K: Arm(0.9)}, env=OTHER_GPU))
    assert both.devices == ("nvidia-b200-148sm-180gib-driver570", H200.key)
    combined, h200, b200 = (matrix_markdown(both, device=device) for device in (None, H200.key, OTHER_GPU.device.key))
    assert "| ✅ [1 of 1 steps]" in combined
    assert "another NVIDIA B200 says ❌" in combined
    assert h200.startswith(f"# Kernel matrix: NVIDIA H200 ({H200.key})\n")
    assert "| ✅ [1 of 1 steps]" in h200
    assert "B200" not in h200
    assert b200.startswith("# Kernel matrix: NVIDIA B200 (")
    assert "| ❌ [0 of 1 steps]" in b200
    assert "H200" not in b200
    assert matrix.file_name("k") == "matrix-k.md"


def test_a_claim_that_one_gpu_founds_is_open_on_the_others(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    claim = '{owner: "@ada", state: done, link: "https://example.com/1"}'
    file.write_text(f"rows:\n  groupnorm_silu:\n    e2e: {claim}\n    pr: {claim}\n")
    other = measurement({K: Arm(1.5)}, of=CASE, env=OTHER_GPU)
    of = verdicts(3.0, measurement({K: Arm(1.5)}, of=CASE), other, claims=load_claims(file))
    here, there = of.on(H200.key).rows[0], of.on(OTHER_GPU.device.key).rows[0]
    assert (here.e2e.symbol, here.pr.symbol) == (Tracker.POSITIVE, Tracker.POSITIVE)
    assert (there.e2e.symbol, there.pr.symbol) == (Tracker.IN_PROGRESS, Tracker.IN_PROGRESS)
    assert there.e2e.owner == "@ada"


def test_evidence_nobody_asks_for_is_listed_under_the_matrix() -> None:
    made = matrix_markdown(decided(measurement({K: Arm(1.5)}, of=case("gone"))))
    assert f"- {H200.key}/groupnorm_silu.jsonl: groupnorm_silu gone (1)" in made


@pytest.mark.defence("report_escaping")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(evil=ANY_TEXT)
def test_nothing_that_came_from_a_file_or_a_package_breaks_the_table_or_calls_anybody(evil: str) -> None:
    """Title, references, remarks, names of GPUs, model code and versions: seven cells a row, one note, no markup."""
    made = verdicts_with(evil)
    markdown = matrix_markdown(made)
    (rows,) = tables(markdown)
    assert [len(row) for row in rows] == [7, 7]
    assert rows[1][1] == flat(evil)
    for token in GITHUB.parse(markdown):
        assert token.type != "html_block"
        if token.type == "inline":
            shown(token, "link_open", "link_close", "strong_open", "strong_close", "em_open", "em_close", "softbreak")
    notes = [token for token in GITHUB.parse(markdown) if token.type == "list_item_open"]
    assert len(notes) == 1


_MADE = verdicts(3.0)


def verdicts_with(evil: str) -> Verdicts:
    """The same verdicts with the text in every place that a file or a package fills."""
    (row,) = _MADE.rows
    (card,) = row.cards
    device = card.device.model_copy(update={"name": f"GPU {evil}"})
    step = card.steps[0].model_copy(update={"model": f"m{evil}"})
    changed = card.model_copy(
        update={"device": device, "steps": (step,), "drivers": (evil,), "providers": {"p": (evil,)}}
    )
    cells = tuple(cell.model_copy(update={"device": device, "library": f"lib {evil}"}) for cell in row.cells)
    made = row.model_copy(
        update={
            "title": evil,
            "triton_ref": evil,
            "cuda_ref": evil,
            "cards": (changed,),
            "cells": cells,
            "pr": row.pr.model_copy(update={"remark": f"@ada: {evil}"}),
            "e2e": row.e2e.model_copy(update={"notes": (f"note {evil}",)}),
        }
    )
    return Verdicts(rows=(made,), set_aside=())


def test_more_than_one_process_family_keeps_one_evidence_link() -> None:
    more = sequence({K: 2.0}, workload="other")
    assert matrix_markdown(verdicts(3.0, more=more)).count("[evidence](") == 2
