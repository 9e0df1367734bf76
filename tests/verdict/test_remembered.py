"""What is remembered is what judging again would give, and is forgotten when anything that went into it changes."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import verdict
from harness.paths import WORK_FOLDER
from harness.report import recall, recompute, render
from harness.schema.manifest import Manifest
from harness.schema.verdict import CardVerdict
from harness.verdict import remembered, rows
from harness.verdict.select import Chosen, Present, Slot, present
from tests.report.golden import ROOT
from tests.report.test_verify import EVIDENCE, alter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "root"))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cards that were judged."""
    cards: list[str] = []

    def counting(manifest: Manifest, chosen: Mapping[Slot, Chosen]) -> CardVerdict:
        card = rows.judge_card(manifest, chosen)
        cards.append(card.device.type)
        return card

    monkeypatch.setattr(verdict, "judge_card", counting)
    return cards


def test_what_is_recalled_is_what_is_recomputed_and_is_judged_once(root: Path, judged: list[str]) -> None:
    first, second = recall(root), recall(root)
    assert sorted(judged) == ["cpu", "cuda"]
    assert first == second == recompute(root)
    assert render(first) == render(recompute(ROOT))


def _source(root: Path) -> None:
    (root / "candidates/groupnorm_silu/op.py").write_text('"""Changed."""\n')


def _case(root: Path) -> None:
    manifest = root / "shapes/groupnorm_silu.yaml"
    manifest.write_text(manifest.read_text().replace("calls: 10", "calls: 11"))


def _pin(root: Path) -> None:
    (root / "constraints-gpu.txt").write_text("torch==2.12.0\ntriton==3.6.0\n")


@pytest.mark.defence("remembered_forgets")
@pytest.mark.parametrize(
    "change",
    [lambda root: alter(root / EVIDENCE, 3, 2, 0, 0, 1.5), _source, _case, _pin],
    ids=["sample", "source", "case", "pin"],
)
def test_a_change_is_judged_anew(root: Path, judged: list[str], change: Any) -> None:
    before = recall(root)
    judged.clear()
    change(root)
    after = recall(root)
    assert "cuda" in judged
    assert after == recompute(root) != before


def test_damage_to_what_is_remembered_is_survived(root: Path) -> None:
    expected = recall(root)
    for file in (root / WORK_FOLDER).rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-3])
    assert recall(root) == expected


def test_sources_are_hashed_again_when_a_file_has_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Path] = []

    def counting(root: Path, manifests: Mapping[str, Manifest]) -> Present:
        hashed.append(root)
        return present(root, manifests)

    monkeypatch.setattr(remembered, "present", counting)
    monkeypatch.setattr(remembered, "RACY_NS", -1)
    recall(root)
    recall(root)
    assert len(hashed) == 1
    _source(root)
    assert recall(root) == recompute(root)
    assert len(hashed) == 2
    (root / "candidates/groupnorm_silu/kernel.py").write_text("")
    assert recall(root) == recompute(root)
    assert len(hashed) == 3
    _pin(root)
    assert recall(root) == recompute(root)
    assert len(hashed) == 3, "pins are read every time"
