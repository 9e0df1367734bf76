"""The cells of this repository as a night sees them."""

from pathlib import Path

import candidates  # noqa: F401  (that of this repository, whatever the root is)
from harness.nightly.due import Card
from harness.nightly.plan import State
from harness.nightly.record import Call, Ended, Night, Piece, Stage
from harness.schema.manifest import load_manifest
from harness.store import ProcessStore
from tests.builders import H200, environment
from tests.e2e_builders import process

ROOT = Path(__file__).parents[2]
OP = "groupnorm_silu"
CALL = Call(started_at="2026-12-02T02:00:00+00:00", budget_min=60)
NIGHT = Night(date="2026-12-02", device_type="cuda", calls=(CALL,))


def project_of(folder: Path) -> Path:
    """This repository's manifests and candidates with a store of its own."""
    for name in ("shapes", "candidates", "constraints-gpu.txt"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_cells_are_due_until_this_card_has_measured_them(tmp_path: Path) -> None:
    root = project_of(tmp_path)
    card = Card(root, H200.uuid, "cuda", {OP: load_manifest(root / "shapes" / f"{OP}.yaml")})
    works, problems = card.cells(NIGHT, 300.0)
    assert problems == []
    names = {work.id for work in works}
    assert "hunyuanvideo-vae/decode-tile" in names
    assert {work.state for work in works} == {State.NEVER}
    deciding = {work.id.split("/")[0] for work in works if work.decides}
    assert deciding == set(card.manifests[OP].deciding_models)
    assert {cost.measure_s for work in works for cost in work.costs} == {375.0}
    assert {work.id: len(work.costs) for work in works}["hunyuanvideo-vae/decode-tile"] == 2, "alone and padded"

    def measured(uuid: str) -> None:
        env = environment(H200.model_copy(update={"uuid": uuid}))
        record = process({"inhouse.triton_groupnorm_silu": 0.0}, workload="hunyuanvideo-vae", op=OP, env=env)
        component = record.component.model_copy(update={"id": "decode-tile"})
        ProcessStore(root / "results").append(record.model_copy(update={"component": component}))

    def state() -> State:
        return next(work.state for work in card.cells(NIGHT, 300.0)[0] if work.id == "hunyuanvideo-vae/decode-tile")

    measured("GPU-another")
    assert state() is State.NEVER, "evidence is not pooled over cards"
    measured(H200.uuid)
    assert state() is State.STALE, "the made-up record was not made with these sources"


def test_a_cell_that_this_night_has_finished_is_not_begun_again(tmp_path: Path) -> None:
    root = project_of(tmp_path)
    card = Card(root, H200.uuid, "cuda", {OP: load_manifest(root / "shapes" / f"{OP}.yaml")})
    name = "hunyuanvideo-vae/decode-tile"

    def after(ended: Ended) -> list[bool]:
        piece = Piece(stage=Stage.E2E, op=OP, what=name, states={}, ended=ended)
        works, _ = card.cells(NIGHT.model_copy(update={"pieces": (piece,)}), 300.0)
        return [work.began for work in works if work.id == name]

    assert after(Ended.DONE) == after(Ended.FAILED) == []
    assert after(Ended.CUT) == [True]
