"""pip's arguments for another machine, and its failures in one sentence."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.provision.pip import Target, command, download


def test_every_older_glibc_is_spelt_out() -> None:
    tags = Target("3.12", "manylinux_2_28_x86_64").tags()
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"} <= set(tags)
    assert "manylinux_2_29_x86_64" not in tags


def test_names_of_newer_glibc_than_the_host_are_not_taken() -> None:
    tags = Target("3.11", "manylinux_2_12_aarch64").tags()
    assert "manylinux2014_aarch64" not in tags
    assert "manylinux2010_aarch64" in tags


def test_other_platforms_are_taken_as_they_are() -> None:
    assert Target("3.13", "macosx_14_0_arm64").tags() == ["macosx_14_0_arm64"]


@pytest.mark.parametrize("python", ["3", "312", "3.12.3", "py3.12", ""])
def test_a_python_version_of_another_form_is_refused(python: str) -> None:
    with pytest.raises(UserError, match=r"not of the form 3\.12"):
        Target(python, "manylinux_2_28_x86_64")


def test_only_wheels_and_no_dependencies_are_asked_for(tmp_path: Path) -> None:
    line = command("tiny==1.0", Target("3.12", "manylinux_2_28_x86_64"), tmp_path)
    assert "--no-deps" in line
    assert "--only-binary=:all:" in line
    assert line[line.index("--python-version") + 1] == "3.12"
    assert line[-3:] == ["--dest", str(tmp_path), "tiny==1.0"]


def test_a_missing_wheel_is_one_sentence_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError) as caught:
        download("no-such-package==1.0", Target("3.12", "manylinux_2_28_x86_64"), tmp_path / "out")
    assert str(caught.value) == (
        "no-such-package==1.0: no wheel for Python 3.12 on manylinux_2_28_x86_64; name another PLATFORM, PY or version"
    )
