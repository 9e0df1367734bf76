"""`make providers`: fetch the upstream packages, without their dependencies, into the providers folder.

Idempotent: a folder whose stamp fits is left alone. Resumable: a wheel already downloaded whole is used again. One
package that fails gives one sentence and the others go on.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
import zipfile
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from harness.errors import ExitCode, UserError
from harness.provision.packages import ANY_LINUX, PACKAGES, Package
from harness.provision.pip import Target, download, download_source, is_whole

REPOSITORY = Path(__file__).resolve().parents[2]
STAMP = ".complete.json"


class Fetched(StrEnum):
    """What `fetch` did."""

    PRESENT = "already there"
    UNPACKED = "unpacked"


def root() -> Path:
    """The providers folder: $HARNESS_PROVIDERS, else `.providers` in the repository."""
    return Path(os.environ.get("HARNESS_PROVIDERS") or REPOSITORY / ".providers")


def is_present(package: Package, folder: Path) -> bool:
    """Whether `folder` holds the package, whole, with the parts that the table keeps today."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(stamp, dict) and stamp.get("keep") == list(package.keep)


def fetch(package: Package, into: Path, machine: str) -> Fetched:
    """Download and unpack one package into `into/<name>-<version>/`.

    Raises UserError when there is no such file, the digest is wrong or nothing to keep is in it.
    """
    folder = into / package.folder
    if is_present(package, folder):
        return Fetched.PRESENT
    downloads = into / ".download" / package.folder
    archive = _downloaded(package, downloads)
    if archive is None:
        shutil.rmtree(downloads, ignore_errors=True)
        target = Target(package.python, f"{ANY_LINUX}_{machine}")
        if package.source:
            download_source(package.requirement, target, downloads, package.environment)
        else:
            download(package.requirement, target, downloads)
        archive = _downloaded(package, downloads)
        if archive is None:
            raise UserError(f"{package.requirement}: pip saved no whole file in {downloads}")
    digest = _verified(package, archive)
    _unpack(package, archive, folder, digest)
    shutil.rmtree(downloads)
    return Fetched.UNPACKED


def _downloaded(package: Package, folder: Path) -> Path | None:
    pattern = "*.tar.gz" if package.source else "*.whl"
    archives = [archive for archive in folder.glob(pattern) if is_whole(archive)]
    return archives[0] if len(archives) == 1 else None


def _verified(package: Package, archive: Path) -> str:
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known = package.sha256.get(archive.name)
    if known is None:
        print(f"  {archive.name}: no digest on record for this file, taken as it is (sha256 {digest})")
    elif known != digest:
        archive.unlink()
        raise UserError(f"{archive.name}: sha256 is {digest}, expected {known}; the file was removed, run it again")
    return digest


def _unpack(package: Package, archive: Path, folder: Path, digest: str) -> None:
    partial = folder.with_name(f".partial-{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    members = (_extract_source if package.source else _extract_wheel)(package, archive, partial)
    missed = [pattern for pattern in package.keep if not any(fnmatchcase(name, pattern) for name in members)]
    if missed:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{archive.name}: nothing in it matches {missed}; this version has moved its files")
    (partial / STAMP).write_text(json.dumps(package.record(archive.name, digest), indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _extract_wheel(package: Package, wheel: Path, into: Path) -> list[str]:
    """Names of what is kept."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if package.keeps(name)]
        archive.extractall(into, members)
    return members


def _extract_source(package: Package, source: Path, into: Path) -> list[str]:
    """Names of what is kept, without the folder that everything in a source archive lies in."""
    with tarfile.open(source) as archive:
        stripped = [member.replace(name=member.name.partition("/")[2]) for member in archive if member.isfile()]
        members = [member for member in stripped if package.keeps(member.name)]
        archive.extractall(into, members, filter="data")
    return [member.name for member in members]


def _size_mib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `python -m harness.provision.providers`."""
    parser = argparse.ArgumentParser(prog="make providers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="of: " + ", ".join(p.name for p in PACKAGES))
    parser.add_argument("--into", type=Path, default=root(), help="providers folder (default: %(default)s)")
    parser.add_argument("--machine", default=platform.machine(), help="processor of the host (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {package.name for package in PACKAGES}
    if unknown:
        print(f"error: unknown packages {sorted(unknown)}; there are {[p.name for p in PACKAGES]}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    failures = 0
    chosen = [package for package in PACKAGES if not options.names or package.name in options.names]
    for number, package in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {package.requirement} ({package.note})", flush=True)
        try:
            fetched = fetch(package, options.into, options.machine)
        except UserError as error:
            failures += 1
            print(f"  error: {error}", file=sys.stderr, flush=True)
            continue
        folder = options.into / package.folder
        print(f"  {fetched}: {folder}, {_size_mib(folder):.1f} MiB", flush=True)
    if failures:
        print(f"{failures} of {len(chosen)} packages could not be fetched; run it again to resume", file=sys.stderr)
    return ExitCode.SOME_FAILED if failures else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
