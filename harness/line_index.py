"""An index of the store, so that deciding need not read it all: a summary of every line and where the line lies.

It lies in `.bench/index/`, is never committed, and changes no result. A file whose size, times and inode are those the
index saw is not read again (as git does it); of a file that has grown, the lines known are checked against their
checksums and the rest is added; anything else is read anew. Every line's checksum is checked when it enters. Samples
are read, and checked once more, from the lines that count. What is not read is not validated in full: `harness verify`
and `harness decide` read and validate every byte, and use no index.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import ValidationError

from harness import jsonl
from harness.errors import UserError
from harness.paths import keep_if_possible
from harness.schema.case import Case
from harness.schema.measurement import SCHEMA_VERSION, Measurement
from harness.schema.vocabulary import ArmStatus, Role
from harness.store import MadeWith, Summary, decode_line, summary_of

FOLDER = "index"
"""Below the work folder."""
FORMAT = 1
RACY_NS = 2_000_000_000
"""A file changed so shortly before it was read may change again within one tick of its clock."""
_CHUNK = 256
"""Lines that one thread takes at a time."""
Stamp = tuple[int, int, int, int]
"""Size, modification and change time in ns, inode."""


class _Device(msgspec.Struct):
    key: str
    uuid: str
    type: Literal["cuda", "cpu"]


class _Environment(msgspec.Struct):
    packages: dict[str, str]
    op_sha256: str
    device: _Device


class _Arm(msgspec.Struct):
    id: str
    role: str
    status: str
    provider_version: str | None = None


class _Record(msgspec.Struct):
    """Of a measurement what a summary is made of; the rest is skipped, not parsed."""

    schema_version: int
    op: str
    case: msgspec.Raw
    context: str | None
    environment: msgspec.Raw
    arms: list[_Arm]
    started_at: str


class _Row(msgspec.Struct, array_like=True):
    """One line of a file."""

    offset: int
    length: int
    sha256: str
    case: int
    """Index into the file's cases."""
    made_with: int
    context: str | None
    uuid: str
    started_at: str
    tried: int


class _File(msgspec.Struct):
    """What the index holds of one file."""

    format: int
    stamp: Stamp | None
    """None where the file was too young when it was read: check it again."""
    op: str
    device_key: str
    device_type: Literal["cuda", "cpu"]
    cases: list[tuple[str, str]]
    """Id and content."""
    made_with: list[tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]]
    rows: list[_Row]


_DECODE_RECORD = msgspec.json.Decoder(_Record)
_DECODE_ENVIRONMENT = msgspec.json.Decoder(_Environment)
_DECODE_FILE = msgspec.msgpack.Decoder(_File)
_TRIED = str(Role.CANDIDATE)
_ABSENT = str(ArmStatus.NOT_INSTALLED)


class IndexedLine:
    """A line of the store whose samples are read when they are asked for."""

    def __init__(self, path: Path, file: str, line: int, row: _Row, summary: Summary) -> None:
        self.file = file
        self.line = line
        self.sha256 = row.sha256
        self.summary = summary
        self._path, self._offset, self._length = path, row.offset, row.length

    @cached_property
    def measurement(self) -> Measurement:
        """The measurement; raises UserError where the line is damaged or is not the one that was indexed."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read(self._length)
        found, sha256 = decode_line(content, self._path, self.file, self.line)
        if sha256 != self.sha256:
            raise UserError(
                f"{self._path}:{self.line}: changed while it was read, without a trace in the file's times; "
                f"remove .bench/{FOLDER} and try again."
            )
        return found


def indexed(results: Path, folder: Path, on_file: Callable[[str], None] = lambda _: None) -> list[IndexedLine]:
    """All lines of the store below `results`, by file and line, through the index in `folder`.

    `on_file` is told each file that has to be read. A folder that cannot be written is no hindrance. Raises UserError
    for a line whose checksum does not hold, that lies in the wrong file, or that a newer harness wrote.
    """
    lines: list[IndexedLine] = []
    for path in sorted(results.glob("*/*.jsonl")):
        if not path.is_file():
            raise UserError(f"{path}: not a file; the store holds one .jsonl file per op, move it away.")
        name = path.relative_to(results).as_posix()
        lines += _lines(path, name, _file(path, name, folder, on_file))
    return lines


def _lines(path: Path, name: str, file: _File) -> Iterator[IndexedLine]:
    made_with = [MadeWith(*one) for one in file.made_with]
    for number, row in enumerate(file.rows, start=1):
        case_id, content = file.cases[row.case]
        summary = Summary(
            file.op,
            case_id,
            content,
            row.context,
            file.device_key,
            row.uuid,
            file.device_type,
            row.started_at,
            row.tried,
            made_with[row.made_with],
        )
        yield IndexedLine(path, name, number, row, summary)


def _file(path: Path, name: str, folder: Path, on_file: Callable[[str], None]) -> _File:
    kept = folder / f"{name.replace('/', '--')}.msgpack"
    known = _known(kept)
    stamp = _stamp(path)
    if known is not None and known.stamp == stamp:
        return known
    on_file(name)
    content = jsonl.whole_lines(path)
    starts = list(_starts(content))
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        if known is None or not _begins(content, known.rows, pool):
            device_key, op = name.removesuffix(".jsonl").split("/")
            known = _File(FORMAT, None, op, device_key, "cuda", [], [], [])
        reader = _Reader(known, content, path, name)
        new = range(len(known.rows), len(starts))
        chunks = [starts[new.start + n : new.start + n + _CHUNK] for n in range(0, len(new), _CHUNK)]
        hashed = pool.map(lambda chunk: [_sha256(content, *one) for one in chunk], chunks)
        for (start, length), sha256 in zip(chain(*chunks), chain.from_iterable(hashed), strict=True):
            reader.add(start, length, sha256)
    young = time.time_ns() - stamp[1] < RACY_NS
    known.stamp = None if young or _stamp(path) != stamp else stamp
    keep_if_possible(kept, msgspec.msgpack.encode(known))
    return known


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _starts(content: bytes) -> Iterator[tuple[int, int]]:
    """Start and length of every line, without its newline."""
    start = 0
    while (end := content.find(b"\n", start)) >= 0:
        yield start, end - start
        start = end + 1


def _sha256(content: bytes, start: int, length: int) -> str:
    """Of a line's record, or nothing where the line is not framed as lines of the store are."""
    framed = jsonl.unframed(content[start : start + length])
    return hashlib.sha256(framed[0]).hexdigest() if framed is not None else ""


def _begins(content: bytes, rows: Sequence[_Row], pool: ThreadPoolExecutor) -> bool:
    """Whether the file still begins with the lines known, to the last byte that their checksums cover."""
    chunks = [rows[n : n + _CHUNK] for n in range(0, len(rows), _CHUNK)]

    def same(chunk: Sequence[_Row]) -> bool:
        return all(
            content[row.offset + row.length : row.offset + row.length + 1] == b"\n"
            and _sha256(content, row.offset, row.length) == row.sha256
            for row in chunk
        )

    return all(pool.map(same, chunks))


class _Reader:
    """Adds lines to what is known of a file; cases and environments are parsed once each."""

    def __init__(self, file: _File, content: bytes, path: Path, name: str) -> None:
        self.file, self.content, self.path, self.name = file, content, path, name
        self._cases: dict[bytes, int] = {}
        self._environments: dict[bytes, _Environment] = {}
        self._case_numbers = {one: number for number, one in enumerate(file.cases)}
        self._made_numbers = {MadeWith(*one): number for number, one in enumerate(file.made_with)}

    def add(self, offset: int, length: int, sha256: str) -> None:
        """One line; raises UserError for what `jsonl.decode` would refuse it for, short of its schema."""
        line = self.content[offset : offset + length]
        framed = jsonl.unframed(line)
        record = None
        if framed is not None and sha256 == framed[1]:
            try:
                record = _DECODE_RECORD.decode(framed[0])
                environment = self._environment(bytes(record.environment))
                case = self._case(bytes(record.case))
            except (msgspec.DecodeError, UnicodeDecodeError, ValidationError):
                record = None
        if record is None or record.schema_version != SCHEMA_VERSION or self._home(record, environment) != self.name:
            # Damaged, misplaced or merely written otherwise: whoever validates in full says which.
            found, sha256 = decode_line(line, self.path, self.name, len(self.file.rows) + 1)
            summary = summary_of(found)
            case = self._number(summary.case_id, summary.content)
            self._append(offset, length, sha256, case, summary)
            return
        tried = sum(arm.role == _TRIED and arm.status != _ABSENT for arm in record.arms)
        providers = tuple(
            (arm.id.split(".")[0], arm.provider_version) for arm in record.arms if arm.provider_version is not None
        )
        made_with = MadeWith(environment.op_sha256, tuple(environment.packages.items()), providers)
        self.file.device_type = environment.device.type
        self.file.rows.append(
            _Row(
                offset,
                length,
                sha256,
                case,
                self._made(made_with),
                record.context,
                environment.device.uuid,
                record.started_at,
                tried,
            )
        )

    def _append(self, offset: int, length: int, sha256: str, case: int, of: Summary) -> None:
        self.file.device_type = of.device_type
        made = self._made(of.made_with)
        self.file.rows.append(
            _Row(offset, length, sha256, case, made, of.context, of.device_uuid, of.started_at, of.tried)
        )

    def _home(self, record: _Record, environment: _Environment) -> str:
        return f"{environment.device.key}/{record.op}.jsonl"

    def _environment(self, text: bytes) -> _Environment:
        if text not in self._environments:
            self._environments[text] = _DECODE_ENVIRONMENT.decode(text)
        return self._environments[text]

    def _case(self, text: bytes) -> int:
        if text not in self._cases:
            case = Case.model_validate_json(text)
            self._cases[text] = self._number(case.id, case.content)
        return self._cases[text]

    def _number(self, case_id: str, content: str) -> int:
        number = self._case_numbers.setdefault((case_id, content), len(self.file.cases))
        if number == len(self.file.cases):
            self.file.cases.append((case_id, content))
        return number

    def _made(self, made_with: MadeWith) -> int:
        number = self._made_numbers.setdefault(made_with, len(self.file.made_with))
        if number == len(self.file.made_with):
            self.file.made_with.append((made_with.op_sha256, made_with.packages, made_with.providers))
        return number


def _known(kept: Path) -> _File | None:
    """What the index holds, or None where it holds nothing that can be used."""
    try:
        known = _DECODE_FILE.decode(kept.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return known if known.format == FORMAT else None
