"""A night's file: what it keeps, and how it reads."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.nightly.plan import State
from harness.nightly.record import Call, Ended, Night, Piece, Stage, Told, file_of, load, markdown, newest, save
from harness.schema.history import Standing

NIGHT = Night(
    date="2026-12-01",
    device_type="cuda",
    device="NVIDIA H200",
    device_key="nvidia-h200",
    calls=(
        Call(started_at="2026-12-01T02:00:00+00:00", budget_min=30, took_s=600, ended="interrupted", reason="^C"),
        Call(
            started_at="2026-12-01T03:00:00+00:00", budget_min=30, took_s=1800, ended="finished",
            reason="the budget is spent",
        ),
    ),
    pieces=(
        Piece(
            stage=Stage.MICROBENCH, op="rmsnorm", what="12 cases", states={State.NEVER: 4, State.STALE: 8},
            ended=Ended.FAILED, failures=("rmsnorm/a: vllm.rms_norm: CRASHED: `x`|y\n@someone",), measured=12,
            estimate_s=240, took_s=260,
        ),
        Piece(
            stage=Stage.E2E, op="rmsnorm", what="wan/step", states={State.NEVER: 1}, ended=Ended.LEFT_OUT,
            reason="needs about 6 min, 4 min are left",
        ),
    ),
)  # fmt: skip


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    file = file_of(tmp_path, "GPU-1", NIGHT.date)
    save(NIGHT, file)
    assert load(file) == NIGHT
    assert [one.name for one in file.parent.iterdir()] == [file.name], "no half file is left"
    assert file_of(tmp_path, "GPU-2", NIGHT.date) != file, "two cards keep two files"


def test_the_newest_is_the_one_begun_last(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `make nightly` first"):
        newest(tmp_path)
    save(NIGHT, file_of(tmp_path, "GPU-1", "2026-12-01"))
    later = NIGHT.model_copy(update={"calls": (Call(started_at="2026-12-02T03:00:00+00:00", budget_min=30),)})
    save(later, file_of(tmp_path, "GPU-2", "2026-12-01"))
    assert newest(tmp_path) == file_of(tmp_path, "GPU-2", "2026-12-01")


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "night.json"
    file.write_text('{"date": 3}')
    with pytest.raises(UserError, match=r"is no night of this harness \(date: .*move it away"):
        load(file)


def test_it_says_what_ran_what_broke_and_what_did_not_with_the_reason() -> None:
    text = markdown(NIGHT)
    assert "NVIDIA H200, 40 min of 60 min asked for, 2 calls, the last finished (the budget is spent)." in text
    assert "| µbench | `rmsnorm` | 12 cases | 4 never measured, 8 stale | 12 | 4 min | 4 min | failed |" in text
    assert "\\`x\\`\\|y" in text, "markup of a package is shown, not obeyed"
    assert "* end to end, `rmsnorm`, wan/step: needs about 6 min, 4 min are left" in text
    assert "Not looked at." in text
    assert "rehearsal" not in text


def test_only_what_the_rule_confirmed_is_called_a_regression() -> None:
    def read(standing: Standing, *, new: bool = False) -> str:
        change = Told(op="rmsnorm", what="a case", since="then", standing=standing, sentence="2 % more time", new=new)
        return markdown(NIGHT.model_copy(update={"changes": (change,)})).partition("## History")[2]

    assert read(Standing.REGRESSION).strip() == "* **regression**: 2 % more time"
    assert read(Standing.SUSPECTED, new=True).strip() == "* new, suspected: 2 % more time"
    nothing = markdown(NIGHT.model_copy(update={"changes": ()}))
    assert "No change is suspected, and no regression stands." in nothing
