"""Fetching upstream packages, on a tiny wheel built here and a pip that sees no index."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.errors import ExitCode, UserError
from harness.provision import providers
from harness.provision.packages import PACKAGES, Package
from harness.provision.pip import is_whole
from harness.provision.providers import Fetched, fetch, is_present

FILES = {
    "tiny/__init__.py": "VALUE = 7\n",
    "tiny/kernels/one.py": "ONE = 1\n",
    "tiny/server/huge.py": "HUGE = 0\n",
}
INFO = {
    "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: torch==99\n",
    "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "tiny-1.0.dist-info/RECORD": "",
}
WHEEL = "tiny-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tiny wheel, the only place pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, text in (FILES | INFO).items():
            archive.writestr(zipfile.ZipInfo(name), text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def tiny(keep: tuple[str, ...] = ("tiny/kernels/*", "*.dist-info/*"), sha256: str | None = None) -> Package:
    return Package("tiny", "1.0", "3.12", keep, {WHEEL: sha256} if sha256 else {}, "a test")


def test_only_what_is_kept_is_unpacked_and_dependencies_are_not_asked_for(index: Path, tmp_path: Path) -> None:
    into = tmp_path / "providers"
    assert fetch(tiny(), into, "x86_64") is Fetched.UNPACKED
    folder = into / "tiny-1.0"
    assert (folder / "tiny/kernels/one.py").read_text() == "ONE = 1\n"
    assert not (folder / "tiny/server").exists()
    assert is_present(tiny(), folder)
    assert not (into / ".download/tiny-1.0").exists()


def test_a_second_fetch_does_nothing_even_without_an_index(index: Path, tmp_path: Path) -> None:
    into = tmp_path / "providers"
    fetch(tiny(), into, "x86_64")
    (index / WHEEL).unlink()
    assert fetch(tiny(), into, "x86_64") is Fetched.PRESENT


def test_another_choice_of_files_unpacks_anew(index: Path, tmp_path: Path) -> None:
    into = tmp_path / "providers"
    fetch(tiny(), into, "x86_64")
    assert fetch(tiny(keep=("tiny/*",)), into, "x86_64") is Fetched.UNPACKED
    assert (into / "tiny-1.0/tiny/server/huge.py").exists()
    assert not (into / "tiny-1.0/tiny-1.0.dist-info").exists()


def test_a_torn_unpacking_is_not_taken_for_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-1.0"
    (folder / "tiny/kernels").mkdir(parents=True)
    assert not is_present(tiny(), folder)
    (folder / providers.STAMP).write_text('{"keep": ')
    assert not is_present(tiny(), folder)


def test_a_whole_download_is_used_again(index: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "providers/.download/tiny-1.0"
    downloads.mkdir(parents=True)
    (index / WHEEL).rename(downloads / WHEEL)
    assert fetch(tiny(), tmp_path / "providers", "x86_64") is Fetched.UNPACKED


def test_a_torn_download_is_thrown_away(index: Path, tmp_path: Path) -> None:
    downloads = tmp_path / "providers/.download/tiny-1.0"
    downloads.mkdir(parents=True)
    (downloads / WHEEL).write_bytes((index / WHEEL).read_bytes()[:100])
    assert fetch(tiny(), tmp_path / "providers", "x86_64") is Fetched.UNPACKED


def test_the_digest_is_checked(index: Path, tmp_path: Path) -> None:
    right = hashlib.sha256((index / WHEEL).read_bytes()).hexdigest()
    assert fetch(tiny(sha256=right), tmp_path / "a", "x86_64") is Fetched.UNPACKED
    with pytest.raises(UserError, match=f"sha256 is {right}, expected 0000"):
        fetch(tiny(sha256="0" * 64), tmp_path / "b", "x86_64")
    assert not (tmp_path / "b/tiny-1.0").exists()
    assert not list((tmp_path / "b").rglob("*.whl"))


def test_a_version_that_moved_its_files_is_refused(index: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing in it matches \['tiny/csrc/\*'\]"):
        fetch(tiny(keep=("tiny/kernels/*", "tiny/csrc/*")), tmp_path, "x86_64")
    assert not (tmp_path / "tiny-1.0").exists()


def test_one_failure_does_not_stop_the_others(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = Package("absent", "2.0", "3.12", ("*",), {}, "a test")
    monkeypatch.setattr(providers, "PACKAGES", (absent, tiny()))
    assert providers.main(["--into", str(tmp_path / "p"), "--machine", "x86_64"]) == ExitCode.SOME_FAILED
    told = capsys.readouterr()
    assert "error: absent==2.0: no wheel for Python 3.12" in told.err
    assert "1 of 2 packages could not be fetched" in told.err
    assert (tmp_path / "p/tiny-1.0/tiny/kernels/one.py").exists()
    assert f"unpacked: {tmp_path / 'p/tiny-1.0'}" in told.out


def source_archive(path: Path, members: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def test_a_source_archive_is_unpacked_without_its_outer_folder(tmp_path: Path) -> None:
    package = Package("tiny", "1.0", "3.12", ("tiny/kernels/*", "LICENSE"), {}, "a test", source=True)
    downloads = tmp_path / "providers/.download/tiny-1.0"
    downloads.mkdir(parents=True)
    members = {f"tiny-1.0/{name}": text for name, text in (FILES | {"LICENSE": "MIT"}).items()}
    source_archive(downloads / "tiny-1.0.tar.gz", members)
    assert fetch(package, tmp_path / "providers", "x86_64") is Fetched.UNPACKED
    folder = tmp_path / "providers/tiny-1.0"
    assert (folder / "tiny/kernels/one.py").read_text() == "ONE = 1\n"
    assert (folder / "LICENSE").exists()
    assert not (folder / "tiny/server").exists()


def test_a_source_archive_that_reaches_outside_is_refused(tmp_path: Path) -> None:
    package = Package("tiny", "1.0", "3.12", ("*",), {}, "a test", source=True)
    downloads = tmp_path / "providers/.download/tiny-1.0"
    downloads.mkdir(parents=True)
    source_archive(downloads / "tiny-1.0.tar.gz", {"tiny-1.0/../../outside.py": "BAD = 1\n"})
    with pytest.raises(tarfile.OutsideDestinationError):
        fetch(package, tmp_path / "providers", "x86_64")
    assert not list(tmp_path.rglob("outside.py"))


def test_a_torn_source_archive_is_not_whole(tmp_path: Path) -> None:
    source_archive(tmp_path / "tiny-1.0.tar.gz", {"tiny-1.0/a.py": "A = 1\n" * 1000})
    assert is_whole(tmp_path / "tiny-1.0.tar.gz")
    data = (tmp_path / "tiny-1.0.tar.gz").read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(data[: len(data) // 2])
    assert not is_whole(tmp_path / "torn.tar.gz")


def test_an_unknown_package_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert providers.main(["sglangg"]) == ExitCode.BAD_INPUT
    assert "unknown packages ['sglangg']" in capsys.readouterr().err


def test_every_pinned_package_knows_its_digest() -> None:
    for package in PACKAGES:
        assert package.sha256, package.name
        for wheel, digest in package.sha256.items():
            end = ".tar.gz" if package.source else "-"
            assert wheel.startswith(
                f"{(package.distribution or package.name).replace('-', '_')}-{package.version}{end}"
            )
            assert len(digest) == 64
