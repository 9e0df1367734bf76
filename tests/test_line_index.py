"""The index says of every line what the store says, reads no more than it must, and notices what the store notices."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import line_index
from harness.errors import UserError
from harness.jsonl import encode
from harness.line_index import IndexedLine, indexed
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import Store
from tests.builders import H200, LAPTOP, Arm, case, environment, measurement

ABSENT = Arm(status=ArmStatus.NOT_INSTALLED, reason="not here")
ARMS = {"inhouse.k": Arm(1.3), "sglang.k": Arm(1.1, provider_version="0.5.23"), "vllm.k": ABSENT}


def some(seed: int = 0, **other: object) -> Measurement:
    return measurement(ARMS, seed=seed, blocks=3, **other)  # type: ignore[arg-type]


class Project:
    """A store, its index, and the files that the index had to read."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "results")
        self.folder = root / "index"
        self.read: list[str] = []

    def add(self, *measurements: Measurement, age_s: int = 60) -> Path:
        """Append; the files are as old as files are that were not written just now."""
        for one in measurements:
            file = self.store.append(one)
        when = file.stat().st_mtime - age_s
        os.utime(file, (when, when))
        return file

    def lines(self) -> list[IndexedLine]:
        self.read.clear()
        return indexed(self.store.root, self.folder, self.read.append)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def told(lines: object) -> list[tuple[object, ...]]:
    return [(one.file, one.line, one.sha256, one.summary, one.measurement) for one in lines]  # type: ignore[attr-defined]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(
            some,
            st.integers(0, 3),
            op=st.sampled_from(["groupnorm_silu", "rmsnorm"]),
            of=st.sampled_from([case(), case("b"), case('quoted"\\é'.encode().hex())]),
            context=st.sampled_from([None, "conv"]),
            env=st.sampled_from([environment(), environment(LAPTOP), environment(op_sha256="old", torch="2.10")]),
            status=st.sampled_from([RunStatus.MEASURED, RunStatus.THROTTLED]),
            reason=st.text(max_size=8),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_it_says_what_the_store_says(tmp_path_factory: pytest.TempPathFactory, made: list[Measurement]) -> None:
    project = Project(tmp_path_factory.mktemp("project"))
    for one in made:
        project.add(one)
        assert told(project.lines()) == told(Store(project.store.root).load())
    assert told(project.lines()) == told(Store(project.store.root).load()), "read from the index"


def test_an_unchanged_file_is_not_read_and_a_longer_one_from_its_end(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    add = line_index._Reader.add

    def counting(self: line_index._Reader, offset: int, length: int, sha256: str) -> None:
        added.append(offset)
        add(self, offset, length, sha256)

    monkeypatch.setattr(line_index._Reader, "add", counting)
    file = project.add(some(1), some(2))
    project.lines()
    assert len(added) == 2
    project.lines()
    assert (project.read, len(added)) == ([], 2)
    before = file.stat().st_size
    project.add(some(3))
    assert [one.line for one in project.lines()] == [1, 2, 3]
    assert project.read == [f"{H200.key}/groupnorm_silu.jsonl"]
    assert added[2:] == [before]


def _altered(file: Path) -> bytes:
    """The file with one sample of its first line altered, to the same length, the checksum redone."""
    first, *rest = file.read_bytes().splitlines(keepends=True)
    record = json.loads(first)["record"]
    pair = record["arms"][0]["samples_us"][0]
    pair[0], pair[1] = pair[1], pair[0]
    return b"".join([encode(record), *rest])


@pytest.mark.defence("index_notices_a_change")
def test_a_change_that_leaves_size_and_time_alike_is_noticed(project: Project) -> None:
    file = project.add(some(1), some(2))
    before = project.lines()
    stat = file.stat()
    altered = _altered(file)
    file.write_bytes(altered)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = project.lines()
    assert after[0].sha256 != before[0].sha256
    assert told(after) == told(Store(project.store.root).load())


def test_a_file_written_just_now_is_checked_again(project: Project) -> None:
    """Within one tick of the clock a second change would leave no trace in the file's times."""
    project.add(some(1), age_s=0)
    project.lines()
    project.lines()
    assert project.read != []


def test_a_line_that_is_no_longer_what_was_indexed_is_refused(project: Project) -> None:
    file = project.add(some(1))
    (line,) = project.lines()
    file.write_bytes(_altered(file))
    with pytest.raises(UserError, match=r"groupnorm_silu\.jsonl:1: changed while it was read"):
        _ = line.measurement


@pytest.mark.defence("index_checksums")
@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"blocks_void":0', b'"blocks_void":1'),
        lambda line: line.replace(b'"groupnorm_silu"', b'"rmsnorm"'),
        lambda line: encode(json.loads(line.replace(b'"schema_version":1', b'"schema_version":9'))["record"]),
        lambda line: encode(json.loads(line.replace(b'"op":"groupnorm_silu"', b'"op":"rmsnorm"'))["record"]),
        lambda line: encode({"op": 1}),
        lambda line: b"not json\n",
        lambda line: b"\n",
    ],
)
def test_what_the_store_refuses_the_index_refuses_in_the_same_words(project: Project, damage: object) -> None:
    file = project.add(some(1), some(2))
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + damage(second))  # type: ignore[operator]
    with pytest.raises(UserError) as of_store:
        Store(project.store.root).load()
    with pytest.raises(UserError) as of_index:
        project.lines()
    assert str(of_index.value) == str(of_store.value)
    assert f"{file}:2: " in str(of_index.value)


def test_a_line_written_otherwise_with_the_right_checksum_is_read(project: Project) -> None:
    file = project.add(some(1))
    loose = json.dumps(json.loads(file.read_text()), indent=None).encode() + b"\n"
    file.write_bytes(loose)
    assert told(project.lines()) == told(Store(project.store.root).load())


def test_a_damaged_index_is_made_anew_and_a_folder_that_cannot_be_is_no_hindrance(project: Project) -> None:
    project.add(some(1))
    expected = told(project.lines())
    (kept,) = project.folder.iterdir()
    for damaged in (b"", b"\x00", kept.read_bytes()[:-5]):
        kept.write_bytes(damaged)
        assert told(project.lines()) == expected
    kept.unlink()
    project.folder.rmdir()
    project.folder.write_text("a file")
    assert told(project.lines()) == expected
