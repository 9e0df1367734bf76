"""What a candidate is made of: a change in any of it makes the evidence stale."""

from pathlib import Path

import pytest

from harness.imported import files_of, sources_sha256


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with an op, and a folder of somebody's own beside it."""
    package = tmp_path / "project" / "candidates" / "toy"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text("SIZE = 1\n")
    (package / "launch.py").write_text("from candidates.toy.kernels import SIZE\n")
    (package / "mine.py").write_text("from candidates.toy import launch\n")
    (package / "other.py").write_text("x = 1\n")
    return tmp_path / "project"


@pytest.mark.defence("candidate_sources")
def test_source_hash_follows_imports(root: Path) -> None:
    """A kernel's launcher is a file of its own: a change there must make the evidence stale."""

    def sha256(name: str) -> str:
        return sources_sha256(root / f"candidates/toy/{name}.py", f"candidates.toy.{name}", root)

    before = {name: sha256(name) for name in ("mine", "other")}
    (root / "candidates/toy/kernels.py").write_text("SIZE = 2\n")
    assert sha256("mine") != before["mine"]
    assert sha256("other") == before["other"]


@pytest.mark.defence("candidate_sources")
@pytest.mark.parametrize("changed", ["helpers.py", "deep/__init__.py", "deep/inner.py", "kernel.cu", "lazy.py"])
def test_file_of_ones_own_is_hashed_with_what_lies_beside_it(root: Path, tmp_path: Path, changed: str) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "deep").mkdir(parents=True)
    for name in ("helpers.py", "deep/__init__.py", "deep/inner.py", "kernel.cu", "lazy.py", "unrelated.py"):
        (theirs / name).write_text("")
    (theirs / "helpers.py").write_text("import torch\nfrom deep.inner import x\n")
    mine = theirs / "mine.py"
    mine.write_text("import helpers\n\n\ndef f():\n    import lazy\n    return load('kernel.cu', '..', 'no.cu')\n")

    def sha256() -> str:
        return sources_sha256(mine, "harness_extra_mine", root)

    before = sha256()
    (theirs / "unrelated.py").write_text("x = 1\n")
    assert sha256() == before
    (theirs / changed).write_text("x = 1\n")
    assert sha256() != before


@pytest.mark.defence("candidate_sources")
def test_installed_package_is_hashed_with_its_relative_imports(root: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "their_kernels"
    (package / "triton").mkdir(parents=True)
    sources = {
        "__init__.py": "",
        "common.py": "",
        "triton/__init__.py": "",
        "triton/norm.py": "from ..common import x\nfrom . import launch\nimport their_kernels.more\n",
        "triton/launch.py": "",
        "more.py": "",
        "other.py": "",
    }
    for name, text in sources.items():
        (package / name).write_text(text)
    found = files_of(package / "triton/norm.py", (root, tmp_path / "site"))
    assert {file.relative_to(package).as_posix() for file in found} == {*sources} - {"other.py"}
    before = sources_sha256(package / "triton/norm.py", "their_kernels.triton.norm", root)
    (package / "more.py").write_text("x = 1\n")
    assert sources_sha256(package / "triton/norm.py", "their_kernels.triton.norm", root) != before


def test_file_that_does_not_parse_counts_with_its_bytes(root: Path) -> None:
    (root / "candidates/toy/launch.py").write_text("x = (\n")
    mine = root / "candidates/toy/mine.py"
    assert files_of(mine, (root,)) == {mine, root / "candidates/toy/launch.py"}
