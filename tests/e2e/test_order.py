"""The committed order names cells that there are; a damaged one is told."""

from pathlib import Path

import pytest

from harness.e2e.command import Request, checked, planned
from harness.e2e.order import FILE, load_order
from harness.e2e.protocol import CellSettings
from harness.errors import UserError
from tests.e2e.twins import ROOT


def names(*models: str) -> list[str]:
    order = load_order(ROOT)
    request = Request(
        ops=tuple(dict.fromkeys(entry.op for entry in order)),
        models=models,
        device_type="cpu",
        settings=CellSettings(),
        fresh=False,
        arms=(),
        checkpoint=None,
        extra=(),
        broken={},
        order=order,
    )
    return [cell.name for cell, _, _ in planned(request, ROOT)]


def test_the_order_is_kept_and_each_wiring_of_an_entry_is_a_cell() -> None:
    cells = names()
    assert cells[:3] == [
        "groupnorm_silu in hunyuanvideo-vae/decode-tile",
        "groupnorm_silu (pad) in hunyuanvideo-vae/decode-tile",
        "groupnorm_silu in flux.1-vae/decode-1024",
    ]
    assert "rmsnorm in wan2.1-t2v-14b/step-480p-4-layers" in cells
    assert "rmsnorm in wan2.1-t2v-14b/step-480p" not in cells
    assert "rmsnorm_vae (silu_pad) in qwen-image-vae/decode-1024" in cells
    assert len(set(cells)) == len(cells)
    assert {cell.partition(" ")[0] for cell in names("flux*")} == {
        "groupnorm_silu", "adaln_modulation", "adalayernorm", "qknorm_rope",
    }  # fmt: skip


def test_a_damaged_order_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no {FILE}"):
        load_order(tmp_path)
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text("cells:\n  - {op: rmsnorm}\n")
    with pytest.raises(UserError, match=r"evidence\.yaml:2: .*model"):
        load_order(tmp_path)


def test_what_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no manifest shapes/nope\.yaml; the ops with one are .*rmsnorm"):
        checked(ROOT, ("nope",), None, None)
    with pytest.raises(UserError, match="there is no such folder"):
        checked(ROOT, ("rmsnorm",), str(tmp_path / "gone"), None)
    with pytest.raises(UserError, match="--lpips: on random weights it says nothing"):
        checked(ROOT, ("rmsnorm",), None, str(tmp_path))
