"""From lines of the store to series: one value with its standard error for each run and arm, and what ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.line_index import FOLDER, IndexedLine, indexed
from harness.paths import WORK_FOLDER, keep_if_possible, package_root
from harness.schema.figures import Evidence
from harness.schema.history import Metric, Run, Series, SeriesKey
from harness.schema.measurement import ArmRecord, EnvironmentRecord, Measurement
from harness.schema.process import ModelArmRecord, ModelRole, ProcessRecord
from harness.schema.vocabulary import Role, RunStatus
from harness.sources import content_sha256, harness_sha256
from harness.stats.estimators import hl_interval
from harness.stats.rule import P_CAP, RuleSettings, decide
from harness.stats.sequences import pair_log_ratios
from harness.stats.units import FloatArray, log_ratios
from harness.store import ProcessStore, StoredProcess
from harness.verdict.compare import reference_arm, train_times_us, why_invalid, why_untrusted
from harness.verdict.remembered import judging_sha256

MAKING = ("harness/history/**/*.py", "harness/line_index.py")


@dataclass(frozen=True)
class Sample:
    """One arm of one run: a value for each block."""

    key: SeriesKey
    blocks_log_pct: FloatArray
    """Shape (blocks,); higher is faster."""
    started_at: str
    card: str
    git_sha: str | None
    build: Mapping[str, str]


def samples_of(of: Measurement) -> list[Sample]:
    """Every arm of a measurement that can be followed; none where it is invalid."""
    if why_invalid(of):
        return []
    reference = reference_arm(of)
    assert reference is not None, "a valid measurement without a baseline"
    base_us = train_times_us(reference)
    found = []
    for arm in of.arms:
        if arm.role is Role.BASELINE:
            blocks, metric, own = -100 * np.log(base_us), Metric.TIME, None
        elif arm.role is Role.CANDIDATE and arm.id in of.timed_arms and not why_untrusted(of, arm):
            blocks, metric, own = log_ratios(base_us, train_times_us(arm)), Metric.RATIO, arm
        else:
            continue
        environment = of.environment
        key = SeriesKey(
            device_key=environment.device.key,
            device_type=environment.device.type,
            op=of.op,
            where=of.case.id,
            context=of.context,
            mode=f"{of.method} {of.cache} {of.case.content}",
            arm=arm.id,
            metric=metric,
        )
        build = build_of(environment, own)
        found.append(Sample(key, blocks, of.started_at, environment.device.uuid, environment.git_sha, build))
    return found


def process_samples(process: ProcessRecord) -> list[Sample]:
    """Every candidate of an end-to-end process against the static baseline."""
    base = next((arm for arm in process.arms if arm.role is ModelRole.BASELINE), None)
    if process.status is not RunStatus.MEASURED or base is None or not base.times_ms:
        return []
    environment = process.environment
    return [
        Sample(
            SeriesKey(
                device_key=environment.device.key,
                device_type=environment.device.type,
                op=process.op,
                where=f"{process.workload}/{process.component.id}",
                context=process.context,
                mode=f"wall clock, {process.attention_backend}, {process.checkpoint or 'random weights'}",
                arm=arm.id,
                metric=Metric.GAIN,
            ),
            pair_log_ratios(base.times_ms, arm.times_ms),
            process.started_at,
            environment.device.uuid,
            environment.git_sha,
            build_of(environment, arm)
            | {"model code": process.library, "wirings": process.wiring_sha256[:12], "e2e": process.e2e_sha256[:12]},
        )
        for arm in process.arms
        if arm.role is ModelRole.CANDIDATE and arm.times_ms
    ]


def build_of(environment: EnvironmentRecord, arm: ArmRecord | ModelArmRecord | None) -> dict[str, str]:
    """What ran. The harness counts by the sources that shape a number, the op by its own."""
    build = {
        **environment.packages,
        "driver": environment.driver,
        "CUDA": environment.cuda,
        "python": environment.python,
        "sources of the op": environment.op_sha256[:12],
        "sources of the harness": environment.harness_sha256[:12],
    }
    if arm is not None:
        build[f"sources of {arm.id}"] = arm.source_sha256[:12]
        if arm.provider_version is not None:
            build[f"package of {arm.id}"] = arm.provider_version
    return build


def series_of(root: Path, ops: frozenset[str] | None, on_read: Callable[[int, int], None]) -> list[Series]:
    """Every series below `results/`, by device, op, case and arm; runs by time."""
    runs: dict[SeriesKey, list[Run]] = {}
    for key, run in (*_microbench(root, ops, on_read), *_end_to_end(root, ops)):
        runs.setdefault(key, []).append(run)
    ordered = sorted(runs, key=lambda key: [str(value) for value in key.model_dump().values()])
    return [
        Series(key=key, runs=tuple(sorted(runs[key], key=lambda run: (run.started_at, run.evidence.line))))
        for key in ordered
    ]


def _microbench(
    root: Path, ops: frozenset[str] | None, on_read: Callable[[int, int], None]
) -> Iterator[tuple[SeriesKey, Run]]:
    folder = root / WORK_FOLDER / FOLDER
    lines = [line for line in indexed(root / "results", folder) if ops is None or line.summary.op in ops]
    by_file: dict[str, list[IndexedLine]] = {}
    for line in lines:
        by_file.setdefault(line.file, []).append(line)
    memos = {file: _Memo(folder, file) for file in by_file}
    total = sum(line.sha256 not in memos[line.file].known for line in lines)
    done = 0
    try:
        for file, of_file in by_file.items():
            for line in of_file:
                if line.sha256 not in memos[file].known:
                    memos[file].add(line)
                    done += 1
                    on_read(done, total)
                yield from memos[file].runs(line)
    finally:
        # Also after Ctrl-C: what was read need not be read again.
        for memo in memos.values():
            memo.keep()


class _Kept(msgspec.Struct):
    """What is remembered of the runs of one file."""

    made_by: str
    keys: list[dict[str, Any]]
    builds: list[dict[str, str]]
    lines: dict[str, list[tuple[int, int, float, float, str, str, str | None]]]
    """By checksum: key, build, value, standard error, start, card, commit."""


class _Memo:
    """The values of a file's lines, computed once."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name.replace('/', '--')}.runs.msgpack"
        made_by = content_sha256([judging_sha256(), harness_sha256(package_root(), MAKING)])
        self._kept = _read(self._file, made_by)
        self._changed = False
        self._keys = [SeriesKey.model_validate(key) for key in self._kept.keys]
        self._key_numbers = {key.model_dump_json(): number for number, key in enumerate(self._keys)}
        self._build_numbers = {content_sha256(build): number for number, build in enumerate(self._kept.builds)}

    @property
    def known(self) -> Mapping[str, object]:
        """Checksums of the lines whose values are known."""
        return self._kept.lines

    def add(self, line: IndexedLine) -> None:
        """Read the line's samples and remember what they say."""
        values = []
        for sample in samples_of(line.measurement):
            interval = hl_interval(sample.blocks_log_pct)
            values.append(
                (
                    self._key(sample.key),
                    self._build(dict(sample.build)),
                    interval.estimate,
                    interval.se,
                    sample.started_at,
                    sample.card,
                    sample.git_sha,
                )
            )
        self._kept.lines[line.sha256] = values
        self._changed = True

    def runs(self, line: IndexedLine) -> Iterator[tuple[SeriesKey, Run]]:
        """The line's runs."""
        for key, build, value, se, started_at, card, git_sha in self._kept.lines[line.sha256]:
            yield (
                self._keys[key],
                Run(
                    started_at=started_at,
                    value_log_pct=value,
                    se_log_pct=se,
                    card=card,
                    git_sha=git_sha,
                    build=self._kept.builds[build],
                    evidence=Evidence(file=line.file, line=line.line, sha256=line.sha256),
                ),
            )

    def keep(self) -> None:
        """Write what was added, if anything was."""
        if self._changed:
            keep_if_possible(self._file, msgspec.msgpack.encode(self._kept))

    def _key(self, key: SeriesKey) -> int:
        number = self._key_numbers.setdefault(key.model_dump_json(), len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
            self._kept.keys.append(key.model_dump(mode="json"))
        return number

    def _build(self, build: dict[str, str]) -> int:
        number = self._build_numbers.setdefault(content_sha256(build), len(self._kept.builds))
        if number == len(self._kept.builds):
            self._kept.builds.append(build)
        return number


def _read(file: Path, made_by: str) -> _Kept:
    try:
        kept = msgspec.msgpack.decode(file.read_bytes(), type=_Kept)
        if kept.made_by == made_by:
            return kept
    except (OSError, msgspec.DecodeError):
        pass
    return _Kept(made_by, [], [], {})


def _end_to_end(root: Path, ops: frozenset[str] | None) -> Iterator[tuple[SeriesKey, Run]]:
    """One run for each sequence of processes: what the rule makes of them so far."""
    sequences: dict[tuple[str, SeriesKey], list[tuple[Sample, StoredProcess]]] = {}
    for stored in ProcessStore(root / "results").load():
        if ops is None or stored.record.op in ops:
            for sample in process_samples(stored.record):
                sequences.setdefault((stored.record.sequence, sample.key), []).append((sample, stored))
    for (_, key), processes in sequences.items():
        processes.sort(key=lambda pair: pair[1].record.process)
        first, stored = processes[0]
        yield (
            key,
            Run(
                started_at=first.started_at,
                **_combined([sample.blocks_log_pct for sample, _ in processes]),
                card=first.card,
                git_sha=first.git_sha,
                build=dict(first.build),
                evidence=Evidence(file=stored.file, line=stored.line, sha256=stored.sha256),
            ),
        )


def _combined(processes: Sequence[FloatArray]) -> dict[str, float]:
    """The rule's mean of a sequence, and the half-width of its interval over two as a standard error."""
    ruling = decide(processes[:P_CAP], P_CAP, RuleSettings())
    width = ruling.upper_log_pct - ruling.lower_log_pct
    return {"value_log_pct": ruling.mean_log_pct, "se_log_pct": width / 4}
