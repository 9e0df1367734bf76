"""Confirming a change: fresh runs of the old and the new build, in pairs, judged by the project's decision rule.

The runs that made the trigger fire are never used: they were chosen for looking changed. What confirms is
`results/<device>/confirm/<op>.jsonl`: runs made for this, of the two builds in turn, on one card. The i-th run of the
old build and the i-th of the new one are a pair; the difference of their blocks is to the rule what one process is,
with K the blocks of the shorter. By the rule (`harness.stats.rule`), with P_max = 8 pairs:

    REGRESSION     the old build is faster than the new one by at least 1 %: from the third pair on
    under the bar  it is not: from the second pair on
    INCONCLUSIVE   eight pairs and neither
    suspected      anything else, and always while there are no pairs

An improvement is confirmed likewise, with old and new exchanged. A build is everything recorded of what ran (versions,
driver, sources), so where nothing recorded has changed there are no two builds to compare, and a change stays
suspected.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import jsonl
from harness.history.series import Sample, process_samples, samples_of
from harness.schema.figures import Span
from harness.schema.history import Change, Confirmation, SeriesKey, Standing
from harness.schema.measurement import SCHEMA_VERSION, Measurement
from harness.schema.process import PROCESS_SCHEMA_VERSION, ProcessRecord
from harness.schema.vocabulary import Decision
from harness.stats.rule import P_CAP, RuleSettings, Ruling, decide
from harness.stats.units import FloatArray, improvement_percent

FOLDER = "confirm"


class ConfirmStore:
    """Runs made to confirm a change: `results/<device>/confirm/<op>.jsonl`, and `.../confirm/e2e/<op>.jsonl`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[SeriesKey, list[Sample]] = {}
        self._read: set[tuple[str, str]] = set()

    def append(self, record: Measurement | ProcessRecord) -> Path:
        """Write one line and sync it to disk; raises like `harness.jsonl.append`."""
        file = self.root / _place(record)
        jsonl.append(file, record.model_dump(mode="json"))
        self._known.clear()
        self._read.clear()
        return file

    def samples(self, key: SeriesKey) -> list[Sample]:
        """The fresh runs of one series, oldest first. Raises UserError for a damaged line."""
        if (key.device_key, key.op) not in self._read:
            self._read.add((key.device_key, key.op))
            for sample in self._load(key.device_key, key.op):
                self._known.setdefault(sample.key, []).append(sample)
        return sorted(self._known.get(key, ()), key=lambda sample: sample.started_at)

    def _load(self, device_key: str, op: str) -> list[Sample]:
        found: list[Sample] = []
        name = f"{device_key}/{FOLDER}/{op}.jsonl"
        if (file := self.root / name).is_file():
            lines = jsonl.decode(jsonl.whole_lines(file), file, name, Measurement, SCHEMA_VERSION, _place)
            found += [sample for record, _ in lines for sample in samples_of(record)]
        name = f"{device_key}/{FOLDER}/e2e/{op}.jsonl"
        if (file := self.root / name).is_file():
            processes = jsonl.decode(jsonl.whole_lines(file), file, name, ProcessRecord, PROCESS_SCHEMA_VERSION, _place)
            found += [sample for process, _ in processes for sample in process_samples(process)]
        return found


def _place(record: Measurement | ProcessRecord) -> str:
    stage = "e2e/" if isinstance(record, ProcessRecord) else ""
    return f"{record.environment.device.key}/{FOLDER}/{stage}{record.op}.jsonl"


def confirmed(change: Change, fresh: ConfirmStore) -> Change:
    """The change with the standing that the fresh runs give it, and what they leave open."""
    if change.before.build == change.after.build:
        card = ", but the card is another one" if change.before.card != change.after.card else ""
        why = f"nothing recorded of what ran has changed{card}: there are no two builds to compare"
        return change.model_copy(update={"why": why})
    pairs = paired(change, fresh)
    if not pairs:
        return change.model_copy(update={"why": f"no fresh runs of the two builds yet: {how(change)}"})
    slower = change.shift_log_pct < 0
    ruling = ruled(pairs, slower)
    standing = {
        Decision.WIN: Standing.REGRESSION if slower else Standing.IMPROVEMENT,
        Decision.NO_WIN: Standing.UNDER_THE_BAR,
        Decision.INCONCLUSIVE: Standing.INCONCLUSIVE,
        Decision.CONTINUE: Standing.SUSPECTED,
    }[ruling.decision]
    shift = _shift(ruling, slower)
    why = (
        f"{ruling.n} {'pair' if ruling.n == 1 else 'pairs'} of fresh runs: {shift.estimate:+.2f} % "
        f"[{shift.lower:+.2f}, {shift.upper:+.2f}] of the time saved"
    )
    if standing is Standing.SUSPECTED:
        why += f", not decided yet: {how(change)}"
    confirmation = Confirmation(shift_pct=shift, pairs=ruling.n, p_max=ruling.p_max)
    return change.model_copy(update={"standing": standing, "why": why, "confirmation": confirmation})


def how(change: Change) -> str:
    """What to run to have fresh runs."""
    return f"`harness confirm {change.key.op} --where {change.key.where}` makes them"


def paired(change: Change, fresh: ConfirmStore) -> list[FloatArray]:
    """Of every pair of fresh runs on one card, new less old by block, log-percent: higher means that new is faster."""
    samples = fresh.samples(change.key)
    pairs: list[tuple[str, FloatArray]] = []
    for card in dict.fromkeys(sample.card for sample in samples):
        old, new = (
            [one for one in samples if one.card == card and one.build == build]
            for build in (change.before.build, change.after.build)
        )
        for before, after in zip(old, new, strict=False):
            blocks = min(len(before.blocks_log_pct), len(after.blocks_log_pct))
            difference = after.blocks_log_pct[:blocks] - before.blocks_log_pct[:blocks]
            pairs.append((max(before.started_at, after.started_at), difference))
    return [difference for _, difference in sorted(pairs, key=lambda pair: pair[0])]


def ruled(pairs: list[FloatArray], slower: bool) -> Ruling:
    """The rule on the first eight pairs: is old faster than new by 1 %, or, for an improvement, new than old?"""
    return decide([np.asarray(-d if slower else d) for d in pairs[:P_CAP]], P_CAP, RuleSettings())


def _shift(ruling: Ruling, slower: bool) -> Span:
    """Percent of the old build's time that the new one saves."""
    if not slower:
        return Span(estimate=ruling.gain_pct, lower=ruling.gain_lower_pct, upper=ruling.gain_upper_pct)
    limits = (-ruling.mean_log_pct, -ruling.upper_log_pct, -ruling.lower_log_pct)
    estimate, lower, upper = map(improvement_percent, limits)
    return Span(estimate=estimate, lower=lower, upper=upper)
