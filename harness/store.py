"""The store: `results/<device key>/<op>.jsonl`, append-only, one checksummed line per measurement (`harness.jsonl`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from harness import jsonl
from harness.errors import UserError
from harness.schema.case import Case
from harness.schema.measurement import SCHEMA_VERSION, EnvironmentRecord, Measurement, Setting
from harness.schema.process import PROCESS_SCHEMA_VERSION, ProcessRecord
from harness.schema.vocabulary import ArmStatus, Role, RunStatus
from harness.sources import content_sha256


@dataclass(frozen=True)
class ArmIdentity:
    """What makes a candidate the same one as before, beside its id."""

    provider_version: str | None
    source_sha256: str


@dataclass(frozen=True)
class MadeWith:
    """What a measurement was made with, of all that can make it stale."""

    op_sha256: str
    packages: tuple[tuple[str, str], ...]
    """Distribution and version."""
    providers: tuple[tuple[str, str], ...]
    """First word of each arm's id and the version of its package, where it has one."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a measurement without its samples: enough to choose the ones that count."""

    op: str
    case_id: str
    content: str
    """What a kernel sees of the case (`Case.content`)."""
    context: str | None
    device_key: str
    device_uuid: str
    device_type: Literal["cuda", "cpu"]
    started_at: str
    tried: int
    """Candidates that were tried: installed ones."""
    made_with: MadeWith

    @property
    def precedence(self) -> tuple[int, str]:
        """Of measurements of the same, the one where this is largest counts: most candidates tried, then the latest."""
        return self.tried, self.started_at


class Line(Protocol):
    """A line of the store: a summary, and the whole measurement for whoever asks."""

    @property
    def measurement(self) -> Measurement:
        """The measurement with its samples."""

    @property
    def file(self) -> str:
        """Below the store's root, with forward slashes."""

    @property
    def line(self) -> int:
        """From 1."""

    @property
    def sha256(self) -> str:
        """Of the record, samples included."""

    @property
    def summary(self) -> Summary:
        """What is known without the samples."""


@dataclass(frozen=True)
class Stored:
    """A measurement and where it lies."""

    measurement: Measurement
    file: str
    """Below the store's root, with forward slashes."""
    line: int
    sha256: str

    @cached_property
    def summary(self) -> Summary:
        """What is known without the samples."""
        return summary_of(self.measurement)


def summary_of(of: Measurement) -> Summary:
    """The summary of a measurement at hand; `harness.line_index` reads the same from a line without its samples."""
    environment = of.environment
    return Summary(
        op=of.op,
        case_id=of.case.id,
        content=of.case.content,
        context=of.context,
        device_key=environment.device.key,
        device_uuid=environment.device.uuid,
        device_type=environment.device.type,
        started_at=of.started_at,
        tried=sum(arm.role is Role.CANDIDATE and arm.status is not ArmStatus.NOT_INSTALLED for arm in of.arms),
        made_with=MadeWith(
            environment.op_sha256,
            tuple(environment.packages.items()),
            tuple((arm.id.split(".")[0], arm.provider_version) for arm in of.arms if arm.provider_version is not None),
        ),
    )


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
        file = self.file(measurement.environment.device.key, measurement.op)
        jsonl.append(file, measurement.model_dump(mode="json"))
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
        content = jsonl.whole_lines(file)
        stamp = (stat.st_size, stat.st_mtime_ns)
        if file not in self._read or self._read[file][0] != stamp:
            name = file.relative_to(self.root).as_posix()
            found = jsonl.decode(content, file, name, Measurement, SCHEMA_VERSION, _place)
            self._read[file] = (stamp, [Stored(of, name, n, sha256) for n, (of, sha256) in enumerate(found, start=1)])
        return self._read[file][1]


def decode_line(line: bytes, file: Path, name: str, number: int) -> tuple[Measurement, str]:
    """One line of `file`, which is `name` below the store's root, with its checksum; raises UserError like `load`."""
    return jsonl.decode_line(line, file, name, number, Measurement, SCHEMA_VERSION, _place)


def _place(measurement: Measurement) -> str:
    return f"{measurement.environment.device.key}/{measurement.op}.jsonl"


@dataclass(frozen=True)
class StoredProcess:
    """One process of an end-to-end cell and where it lies."""

    record: ProcessRecord
    file: str
    """Below the store's root, with forward slashes."""
    line: int
    sha256: str


class ProcessStore:
    """End-to-end evidence: `results/<device key>/e2e/<op>.jsonl`, one line per process."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def append(self, record: ProcessRecord) -> Path:
        """As `Store.append`."""
        file = self.root / _process_place(record)
        jsonl.append(file, record.model_dump(mode="json"))
        return file

    def load(self, op: str | None = None) -> list[StoredProcess]:
        """All processes, or those of one op, by file and line; raises UserError like `Store.load`."""
        found = []
        for file in sorted(self.root.glob(f"*/e2e/{op or '*'}.jsonl")):
            name = file.relative_to(self.root).as_posix()
            records = jsonl.decode(
                jsonl.whole_lines(file), file, name, ProcessRecord, PROCESS_SCHEMA_VERSION, _process_place
            )
            found += [StoredProcess(of, name, n, sha256) for n, (of, sha256) in enumerate(records, start=1)]
        return found


def _process_place(record: ProcessRecord) -> str:
    return f"{record.environment.device.key}/e2e/{record.op}.jsonl"
