"""Append-only files of checksummed JSON lines, written whole under a lock and synced.

A line is `{"record": {...}, "sha256": "<of the record's JSON text>"}`; the text has no spaces and keeps the order of
keys, since the order of a case's dims is its logical shape. A kill in mid-write leaves a line without its newline: the
next reader or writer moves that tail to `<file>.torn` and says so. Any other damage is an error with its place, for a
person to look at.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from filelock import FileLock
from pydantic import BaseModel, ValidationError

from harness.errors import UnfitError, UserError
from harness.sources import compact_json, text_sha256

log = logging.getLogger(__name__)

Record = TypeVar("Record", bound=BaseModel)


_BEFORE, _BETWEEN = b'{"record":', b',"sha256":"'
_AFTER = len(_BETWEEN) + 64 + len('"}')


def encode(record: Mapping[str, Any]) -> bytes:
    """The line of a record, newline included. Raises ValueError for NaN and infinity."""
    text = compact_json(record)
    return f'{{"record":{text},"sha256":"{text_sha256(text)}"}}\n'.encode()


def unframed(line: bytes) -> tuple[bytes, str] | None:
    """The record's JSON text and the checksum claimed for it, of a line framed as `encode` frames it; else None."""
    text, between, end = line[len(_BEFORE) : -_AFTER], line[-_AFTER:-66], line[-2:]
    if not line.startswith(_BEFORE) or between != _BETWEEN or end != b'"}':
        return None
    return text, line[-66:-2].decode("ascii", errors="replace")


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Write one line and sync it to disk, making the folder where there is none.

    Raises ValueError for NaN and infinity, UnfitError where the disk takes no whole line; nothing is left then.
    """
    line = encode(record)
    try:
        with _ready(file):
            _append_whole(file, line)
    except OSError as error:
        raise UnfitError(
            f"{file}: cannot be written ({error.strerror}); what was measured before is kept, and the same command "
            "goes on from there once it can."
        ) from error


def add_lines(file: Path, lines: Iterable[bytes]) -> int:
    """Write those lines (without newlines) that the file lacks, all or none, as `append` does; how many they were.

    Raises UnfitError where the disk does not take them.
    """
    try:
        with _ready(file):
            known = set(file.read_bytes().splitlines()) if file.exists() else set[bytes]()
            new = [line for line in lines if line not in known]
            if new:
                _append_whole(file, b"".join(line + b"\n" for line in new))
            return len(new)
    except OSError as error:
        raise UnfitError(f"{file}: cannot be written ({error.strerror}); it is as it was.") from error


def decode(
    content: bytes, file: Path, name: str, model: type[Record], version: int, place: Callable[[Record], str]
) -> list[tuple[Record, str]]:
    """The records of a file's whole lines with their checksums.

    `name` is the file below the store's root, which `place` must give for each. Raises UserError naming file and line
    for a damaged line, a misplaced one, or one written by a newer harness.
    """
    lines = content.split(b"\n")[:-1]
    return [decode_line(line, file, name, number, model, version, place) for number, line in enumerate(lines, start=1)]


@contextmanager
def _ready(file: Path) -> Iterator[None]:
    """The file's folder, its lock, and no torn tail at its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _lock(file):
        _set_torn_tail_aside(file)
        yield


def _append_whole(file: Path, content: bytes) -> None:
    """As `_append`, and sync the folder where the file is new."""
    created = not file.exists()
    _append(file, content)
    if created:
        _sync_folder(file.parent)


def _lock(file: Path) -> FileLock:
    return FileLock(f"{file}.lock")


def _append(file: Path, line: bytes) -> None:
    """Write the whole content and sync it, or leave the file as it was. The caller holds the lock."""
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


def whole_lines(file: Path) -> bytes:
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


def decode_line(
    line: bytes,
    file: Path,
    name: str,
    number: int,
    model: type[Record],
    version: int,
    place: Callable[[Record], str],
) -> tuple[Record, str]:
    """The record of one line; raises UserError with its place when anything about it is wrong."""
    framed = unframed(line)
    if framed is not None and hashlib.sha256(framed[0]).hexdigest() == framed[1]:
        with suppress(ValidationError):
            found = model.model_validate_json(framed[0])
            if place(found) == name:
                return found, framed[1]
    return _decode_slowly(line, file, name, number, model, version, place)


def _decode_slowly(
    line: bytes,
    file: Path,
    name: str,
    number: int,
    model: type[Record],
    version: int,
    place: Callable[[Record], str],
) -> tuple[Record, str]:
    """As `decode_line`, for a line that is not as `encode` writes it: right all the same, or what is wrong with it."""

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
    written = record.get("schema_version")
    if isinstance(written, int) and written > version:
        fail(f"written in format {written}, this harness reads up to {version}; update the harness.")
    try:
        found = model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        fail(f"{'.'.join(map(str, first['loc']))}: {first['msg']}; {restore}")
    if (home := place(found)) != name:
        fail(f"holds a measurement that belongs in {home}; move the line there.")
    return found, actual
