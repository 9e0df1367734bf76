"""Files are kept whole, and what cannot be written says which file or folder it was."""

from pathlib import Path

import pytest

from harness.errors import UnfitError
from harness.paths import keep_whole, require_writable


def test_a_file_that_cannot_be_written_is_named_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "matrix.md"
    keep_whole(file, b"old")

    def full(half: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")  # as a write says it: without a name

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        keep_whole(file, b"new")
    assert raised.value.filename == str(file)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_ctrl_c_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "matrix.md"
    keep_whole(file, b"old")

    def interrupted(half: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keep_whole(file, b"new")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"old"


def test_a_folder_that_takes_no_bytes_is_named(tmp_path: Path) -> None:
    require_writable(tmp_path / "made", "nothing was lost.")
    (tmp_path / "file").touch()
    with pytest.raises(UnfitError, match=r"file: cannot be written \(File exists\); nothing was lost\."):
        require_writable(tmp_path / "file", "nothing was lost.")
