"""What was judged before, so that the same evidence is not judged again: nothing else, and no other result.

Judging is pure, so what it gave is kept under a hash of all that went in: the lines' checksums, what is stale about
them, the manifest, and the sources of the harness that judge. `harness verify` and `harness decide` remember nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from harness.paths import keep_if_possible, package_root
from harness.schema.manifest import Manifest
from harness.schema.verdict import CardVerdict
from harness.sources import content_sha256, harness_sha256, text_sha256
from harness.store import Line
from harness.verdict.compare import why_invalid
from harness.verdict.select import Chosen, Slot

JUDGING = ("harness/verdict/**/*.py", "harness/stats/**/*.py", "harness/schema/**/*.py")
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
