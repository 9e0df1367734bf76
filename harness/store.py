"""The store: `results/<device key>/<op>.jsonl`, append-only, one checksummed line per measurement.

A line is `{"record": {...}, "sha256": "<of the record's JSON text>"}`; the text has no spaces and keeps the order of
keys, since the order of a case's dims is its logical shape. It is written whole under a file lock and synced to disk.
A kill in mid-write leaves a line without its newline: the next reader or writer moves that tail to
`<op>.jsonl.torn` and says so. Any other damage is an error with its place, for a person to look at.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock
from pydantic import ValidationError

from harness.errors import UnfitError, UserError
from harness.schema.case import Case
from harness.schema.measurement import SCHEMA_VERSION, EnvironmentRecord, Measurement, Setting
from harness.schema.vocabulary import Role, RunStatus
from harness.sources import compact_json, content_sha256, text_sha256

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArmIdentity:
    """What makes a candidate the same one as before, beside its id."""

    provider_version: str | None
    source_sha256: str


@dataclass(frozen=True)
class Stored:
    """A measurement and where it lies."""

    measurement: Measurement
    file: str
    """Below the store's root, with forward slashes."""
    line: int
    sha256: str


def resume_key(
    op: str,
    case: Case,
    context: str | None,
    environment: EnvironmentRecord,
    arms: Mapping[str, ArmIdentity],
    settings: Mapping[str, Setting],
) -> str:
    """Hash of everything that would have to be the same for a measurement not to be worth repeating.

    `case` is the case as measured (the twin on a CPU), of which only what a kernel sees counts: cases of two models of
    one shape share their measurement. `arms` are the candidates alone, without the baseline and its twin. The
    GPU's UUID counts and the boot does not.
    """
    device = environment.device
    return content_sha256(
        {
            "op": op,
            "case": case.content,
            "context": context,
            "device": [device.key, device.uuid],
            "environment": environment.model_dump(mode="json", exclude={"git_sha", "device"}),
            "arms": {name: [arm.provider_version, arm.source_sha256] for name, arm in arms.items()},
            "settings": dict(settings),
        }
    )


def resume_key_of(measurement: Measurement) -> str:
    """The resume key of a measurement that was made."""
    return resume_key(
        measurement.op,
        measurement.case,
        measurement.context,
        measurement.environment,
        {
            arm.id: ArmIdentity(arm.provider_version, arm.source_sha256)
            for arm in measurement.arms
            if arm.role is Role.CANDIDATE
        },
        measurement.settings,
    )


def encode(record: Mapping[str, Any]) -> bytes:
    """The line of a record, newline included. Raises ValueError for NaN and infinity."""
    text = compact_json(record)
    return f'{{"record":{text},"sha256":"{text_sha256(text)}"}}\n'.encode()


class Store:
    """Reads and appends below one folder (`results/`); several processes may do so at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, tuple[tuple[int, int], list[Stored]]] = {}

    def file(self, device_key: str, op: str) -> Path:
        """Where measurements of an op on a device lie."""
        return self.root / device_key / f"{op}.jsonl"

    def append(self, measurement: Measurement) -> Path:
        """Write one line and sync it to disk; return the file.

        Raises ValueError for NaN and infinity, UnfitError where the disk takes no whole line; nothing is left then.
        """
        line = encode(measurement.model_dump(mode="json"))
        file = self.file(measurement.environment.device.key, measurement.op)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with _lock(file):
                _set_torn_tail_aside(file)
                created = not file.exists()
                _append(file, line)
                if created:
                    _sync_folder(file.parent)
        except OSError as error:
            raise UnfitError(
                f"{file}: cannot be written ({error.strerror}); what was measured before is kept, and the same command "
                "goes on from there once it can."
            ) from error
        return file

    def load(self, op: str | None = None, device_key: str | None = None) -> list[Stored]:
        """All measurements, or those of one op or device, by file and line.

        Raises UserError naming file and line for a damaged line or one written by a newer harness.
        """
        files = sorted(self.root.glob(f"{device_key or '*'}/{op or '*'}.jsonl"))
        if strange := next((file for file in files if not file.is_file()), None):
            raise UserError(f"{strange}: not a file; the store holds one .jsonl file per op, move it away.")
        return [stored for file in files for stored in self._load_file(file)]

    def find(self, key: str, op: str) -> Stored | None:
        """The newest measurement of the op with that resume key that was measured to the end, or None."""
        matches = [
            stored
            for stored in self.load(op)
            if stored.measurement.status is RunStatus.MEASURED and resume_key_of(stored.measurement) == key
        ]
        return max(matches, key=lambda stored: stored.measurement.started_at, default=None)

    def _load_file(self, file: Path) -> list[Stored]:
        stat = file.stat()
        content = _whole_lines(file)
        stamp = (stat.st_size, stat.st_mtime_ns)
        if file not in self._read or self._read[file][0] != stamp:
            name = file.relative_to(self.root).as_posix()
            lines = content.split(b"\n")[:-1]
            self._read[file] = (stamp, [_decode(line, file, name, n) for n, line in enumerate(lines, start=1)])
        return self._read[file][1]


def _lock(file: Path) -> FileLock:
    return FileLock(f"{file}.lock")


def _append(file: Path, line: bytes) -> None:
    """Write the whole line and sync it, or leave the file as it was. The caller holds the lock."""
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole_lines(file: Path) -> bytes:
    """The file's bytes up to its last newline; a tail after it is set aside unless a writer is still busy with it."""
    content = file.read_bytes()
    if not content or content.endswith(b"\n"):
        return content
    try:
        with _lock(file):
            _set_torn_tail_aside(file)
            return file.read_bytes()
    except OSError as error:
        log.warning("%s: the last line is torn and cannot be set aside (%s); left out.", file, error.strerror)
        return content[: content.rfind(b"\n") + 1]


def _set_torn_tail_aside(file: Path) -> None:
    """Move an unfinished last line to `<file>.torn`. The caller holds the lock."""
    content = file.read_bytes() if file.exists() else b""
    whole = content.rfind(b"\n") + 1
    tail = content[whole:]
    if not tail:
        return
    torn = file.with_name(f"{file.name}.torn")
    with torn.open("ab") as out:
        out.write(tail + b"\n")
        out.flush()
        os.fsync(out.fileno())
    os.truncate(file, whole)
    log.warning(
        "%s: the last line was torn by a kill in mid-write; moved its %d bytes to %s, measure that case again.",
        file,
        len(tail),
        torn.name,
    )


def _decode(line: bytes, file: Path, name: str, number: int) -> Stored:
    """The measurement of one line; raises UserError with its place when anything about it is wrong."""

    def fail(problem: str) -> NoReturn:
        raise UserError(f"{file}:{number}: {problem}")

    restore = "restore the file from version control, or delete the line and measure the case again."
    try:
        envelope = json.loads(line, parse_constant=lambda constant: fail(f"{constant} is not a number; {restore}"))
        record, claimed = dict(envelope["record"]), envelope["sha256"]
        text = compact_json(record)
        actual = text_sha256(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        fail(f"not a line of the store; {restore}")
    if actual != claimed:
        fail(f"the checksum does not match the record; {restore}")
    version = record.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        fail(f"written in format {version}, this harness reads up to {SCHEMA_VERSION}; update the harness.")
    try:
        measurement = Measurement.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        fail(f"{'.'.join(map(str, first['loc']))}: {first['msg']}; {restore}")
    place = f"{measurement.environment.device.key}/{measurement.op}.jsonl"
    if place != name:
        fail(f"holds a measurement that belongs in {place}; move the line there.")
    return Stored(measurement, name, number, actual)
