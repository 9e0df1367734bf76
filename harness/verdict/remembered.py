"""What was judged before, so that the same evidence is not judged again: nothing else, and no other result.

Judging is pure, so what it gave is kept under a hash of all that went in: the lines' checksums, what is stale about
them, the manifest, and the sources of the harness that judge. `harness verify` and `harness decide` remember nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from harness.imported import PACKAGE
from harness.line_index import RACY_NS
from harness.paths import keep_if_possible, package_root
from harness.schema.manifest import Manifest
from harness.schema.verdict import CardVerdict
from harness.sources import content_sha256, harness_sha256, text_sha256
from harness.store import Line
from harness.verdict.compare import why_invalid
from harness.verdict.select import Chosen, Present, Slot, pinned, present

JUDGING = ("harness/verdict/**/*.py", "harness/stats/**/*.py", "harness/schema/**/*.py", "harness/imported.py")
"""Globs of the harness sources that make a verdict of samples."""

JudgeCard = Callable[[Manifest, Mapping[Slot, Chosen]], CardVerdict]


@cache
def judging_sha256() -> str:
    """Hash of the sources and libraries that make a verdict of samples."""
    return content_sha256([harness_sha256(package_root(), JUDGING), *map(version, ("numpy", "scipy", "pydantic"))])


class Remembered:
    """Verdicts on cards and on single lines, kept in one folder: at most one file for each op and card."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reasons_file = folder / "reasons.json"
        self._reasons = self._read_reasons()
        self._asked: dict[str, str] = {}

    def why_not(self, line: Line) -> str:
        """Why the line's samples cannot be judged, or the empty string."""
        if line.sha256 not in self._asked:
            known = self._reasons.get(line.sha256)
            self._asked[line.sha256] = why_invalid(line.measurement) if known is None else known
        return self._asked[line.sha256]

    def present(self, root: Path, manifests: Mapping[str, Manifest]) -> Present:
        """What evidence is compared with; sources are hashed again when a file below `candidates/` has changed.

        A file has not where its size, times and inode are as they were, unless it was changed a moment before.
        """
        file, stamps = self.folder / "present.json", _stamps(root / PACKAGE)
        tolerances = {op: manifest.tolerance.model_dump(mode="json") for op, manifest in manifests.items()}
        key = content_sha256([judging_sha256(), tolerances, stamps])
        with suppress(OSError, ValueError):
            kept_key, text = file.read_text(encoding="utf-8").split("\n", 1)
            if kept_key == key:
                op_sha256, wiring_sha256 = _HASHES.validate_json(text)
                return Present(op_sha256, wiring_sha256, pinned(root))
        found = present(root, manifests)
        if time.time_ns() - max((mtime for _, _, mtime, *_ in stamps), default=0) > RACY_NS:
            hashes = _HASHES.dump_json((dict(found.op_sha256), dict(found.wiring_sha256)))
            keep_if_possible(file, key.encode() + b"\n" + hashes)
        return found

    def judge_card(self, judge: JudgeCard) -> JudgeCard:
        """`judge`, asked only for what it was not asked before."""

        def remembering(manifest: Manifest, chosen: Mapping[Slot, Chosen]) -> CardVerdict:
            of = next(iter(chosen.values())).stored.summary
            file = self.folder / f"{of.device_key}--{text_sha256(of.device_uuid)[:12]}--{manifest.op}.json"
            key = _key(manifest, chosen)
            known = _known(file, key)
            if known is None:
                known = judge(manifest, chosen)
                keep_if_possible(file, f"{key}\n{known.model_dump_json()}".encode())
            return known

        return remembering

    def keep(self) -> None:
        """Write what was said of single lines, those alone that were asked for this time."""
        if self._asked != self._reasons:
            keep_if_possible(self._reasons_file, judging_sha256().encode() + b"\n" + _REASONS.dump_json(self._asked))

    def _read_reasons(self) -> dict[str, str]:
        try:
            judged_by, text = self._reasons_file.read_text(encoding="utf-8").split("\n", 1)
            return _REASONS.validate_json(text) if judged_by == judging_sha256() else {}
        except (OSError, ValueError):
            return {}


_REASONS = TypeAdapter(dict[str, str])
_HASHES = TypeAdapter(tuple[dict[str, str], dict[str, str]])


def _stamps(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Of every file and folder below: name, size, times of modification and change in ns, inode."""
    return [
        (path.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
        for stat in (path.stat() if path.exists() else path.lstat(),)
    ]


def _key(manifest: Manifest, chosen: Mapping[Slot, Chosen]) -> str:
    """Hash of all that `judge_card` looks at."""
    return content_sha256(
        [
            judging_sha256(),
            manifest.model_dump(mode="json"),
            [
                [
                    *slot,
                    one.case.model_dump(mode="json"),
                    [one.stored.file, one.stored.line, one.stored.sha256],
                    list(one.staleness.reasons),
                    one.staleness.case_changed,
                    one.passed_over,
                ]
                for slot, one in chosen.items()
            ],
        ]
    )


def _known(file: Path, key: str) -> CardVerdict | None:
    try:
        kept_key, text = file.read_text(encoding="utf-8").split("\n", 1)
        return CardVerdict.model_validate_json(text) if kept_key == key else None
    except (OSError, ValueError, ValidationError):
        return None
