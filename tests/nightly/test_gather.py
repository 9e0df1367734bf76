"""Evidence of another tree is added, once, and nothing here is changed."""

from pathlib import Path

import pytest

from harness.errors import ExitCode, UserError
from harness.nightly.gather import gather, main
from harness.nightly.record import Call, Night, file_of, load, save
from harness.store import ProcessStore, Store
from tests.builders import Arm, case, measurement
from tests.e2e_builders import process


def test_lines_that_are_not_here_are_added_after_those_that_are(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    common, ours, theirs = (measurement({"k": Arm()}, of=case(name), seed=n) for n, name in enumerate("abc"))
    for one in (common, ours):
        Store(here).append(one)
    for one in (common, theirs):
        Store(there).append(one)
    ProcessStore(there).append(process({}))
    assert gather(there, here) == 2
    assert [one.measurement.case.id for one in Store(here).load()] == ["a", "b", "c"]
    assert len(ProcessStore(here).load()) == 1
    assert gather(there, here) == 0, "a second time adds nothing"


def test_nights_come_along_and_those_here_stay(tmp_path: Path) -> None:
    call = Call(started_at="2026-12-01T02:00:00+00:00", budget_min=30)
    ours = Night(date="2026-12-01", device_type="cuda", device="ours", calls=(call,))
    theirs = ours.model_copy(update={"device": "theirs"})
    save(ours, file_of(tmp_path / "here", "GPU-1", "2026-12-01"))
    save(theirs, file_of(tmp_path / "there", "GPU-1", "2026-12-01"))
    save(theirs, file_of(tmp_path / "there", "GPU-1", "2026-12-02"))
    assert gather(tmp_path / "there/results", tmp_path / "here/results") == 0
    assert load(file_of(tmp_path / "here", "GPU-1", "2026-12-01")).device == "ours"
    assert load(file_of(tmp_path / "here", "GPU-1", "2026-12-02")).device == "theirs"


def test_damaged_evidence_is_refused_whole(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    Store(there).append(measurement({"k": Arm()}))
    file = Store(there).append(measurement({"k": Arm()}, of=case("other"), op="rmsnorm"))
    file.write_text(file.read_text().replace('"seed":0', '"seed":1'))
    with pytest.raises(UserError, match=r"rmsnorm\.jsonl:1"):
        gather(there, here)
    assert not here.exists()


def test_it_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.BAD_INPUT
    assert main([str(tmp_path / "nothing")]) == ExitCode.BAD_INPUT
    assert "there is no such folder; FROM names the results/ of another tree." in capsys.readouterr().err


@pytest.mark.parametrize("word", ["", " "])
def test_a_blank_folder_is_not_this_one(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == ExitCode.BAD_INPUT
    assert "make gather FROM=<folder>" in capsys.readouterr().err


def test_only_what_the_stores_hold_is_taken_up(tmp_path: Path) -> None:
    """FROM may be a whole project, whose tests have evidence of their own."""
    there = tmp_path / "there"
    Store(there / "tests/data/results").append(measurement({"k": Arm()}))
    assert gather(there, tmp_path / "here") == 0
    assert not (tmp_path / "here").exists()


def test_a_torn_line_here_is_set_aside_before_lines_are_added(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first, second = (measurement({"k": Arm()}, of=case(name), seed=n) for n, name in enumerate("ab"))
    for one in (first, second):
        file = Store(there).append(one)
    ours = here / file.relative_to(there)
    ours.parent.mkdir(parents=True)
    ours.write_bytes(file.read_bytes()[:-100])
    assert gather(there, here) == 1
    assert ours.read_bytes() == file.read_bytes()
    assert ours.with_name(f"{ours.name}.torn").exists()
