"""The store keeps what it is given, loses at most the line that was being written, and notices every other damage."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UnfitError, UserError
from harness.jsonl import encode
from harness.schema.measurement import Measurement
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import ArmIdentity, ProcessStore, Store, resume_key, resume_key_of
from tests.builders import H200, LAPTOP, TWIN, Arm, case, environment, measurement, with_samples
from tests.e2e_builders import process

ARMS = {"inhouse.twopass": Arm(speedup=1.3), "sglang.fused": Arm(status=ArmStatus.INELIGIBLE, reason="fp32 | odd\nH·W")}
ONE_FILE = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
times_us = st.floats(min_value=1e-3, max_value=1e7, allow_nan=False)


def small(seed: int = 0) -> Measurement:
    return measurement(ARMS, seed=seed, blocks=3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@ONE_FILE
@given(
    samples=st.lists(st.tuples(times_us, times_us), min_size=3, max_size=3),
    reason=st.text(max_size=40),
    seed=st.integers(0, 9),
)
def test_what_is_written_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[float, float]], reason: str, seed: int
) -> None:
    store = Store(tmp_path_factory.mktemp("results"))
    written = [
        with_samples(small(seed), TWIN, samples),
        measurement(ARMS, status=RunStatus.THROTTLED, reason=reason),
    ]
    for one in written:
        store.append(one)
    assert [stored.measurement for stored in store.load()] == written
    assert [stored.line for stored in store.load()] == [1, 2]


@pytest.mark.defence("store_key_order")
def test_the_order_of_dims_survives_because_it_is_the_logical_shape(store: Store) -> None:
    store.append(small())
    assert store.load()[0].measurement.case.shape == (1, 512, 5, 32, 32)


def test_lines_lie_under_their_device_and_op(store: Store) -> None:
    file = store.append(small())
    store.append(measurement(ARMS, env=environment(LAPTOP)))
    assert file == store.root / H200.key / "groupnorm_silu.jsonl"
    assert len(store.load()) == 2
    assert len(store.load("groupnorm_silu", LAPTOP.key)) == 1
    assert store.load("rmsnorm") == []


@pytest.mark.defence("store_nan")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_even_where_validation_was_skipped(store: Store, bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        store.append(with_samples(small(), TWIN, [(bad, 1.0)]))
    assert store.load() == []


def test_nan_smuggled_into_a_file_is_refused_on_reading(store: Store) -> None:
    file = store.append(small())
    file.write_text('{"record": {"x": NaN}, "sha256": "0"}\n')
    with pytest.raises(UserError, match=r"groupnorm_silu\.jsonl:1: NaN is not a number"):
        store.load()


@pytest.mark.defence("store_checksum")
def test_an_altered_sample_is_found_with_its_place(store: Store) -> None:
    store.append(small(1))
    file = store.append(small(2))
    lines = file.read_text().splitlines(keepends=True)
    sample = json.loads(lines[1])["record"]["arms"][0]["samples_us"][0][0]
    file.write_text(lines[0] + lines[1].replace(repr(sample), repr(sample * 0.9), 1))
    with pytest.raises(UserError, match=r"groupnorm_silu\.jsonl:2: the checksum does not match"):
        store.load()


@ONE_FILE
@given(data=st.data())
def test_a_flipped_bit_is_detected_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """`1e-05` and `1E-05` are the same number; every flip that alters content must be refused."""
    store = Store(tmp_path_factory.mktemp("results"))
    written = [small(1), small(2)]
    for one in written:
        file = store.append(one)
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 2), label="byte")
    content[position] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    file.write_bytes(bytes(content))
    try:
        read = [stored.measurement for stored in store.load()]
    except UserError:
        return
    assert read == written


@pytest.mark.defence("store_torn_line")
@ONE_FILE
@given(cut=st.integers(min_value=1, max_value=10**6))
def test_a_kill_in_mid_line_loses_only_that_line(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    store = Store(tmp_path_factory.mktemp("results"))
    store.append(small(1))
    line = encode(small(2).model_dump(mode="json"))
    torn = line[: 1 + cut % (len(line) - 1)]
    file = store.file(H200.key, "groupnorm_silu")
    with file.open("ab") as out:
        out.write(torn)
    with caplog.at_level(logging.WARNING):
        store.append(small(3))
    assert [stored.measurement for stored in store.load()] == [small(1), small(3)]
    assert file.with_name("groupnorm_silu.jsonl.torn").read_bytes() == torn + b"\n"
    assert "torn by a kill" in caplog.text


def test_reading_alone_sets_a_torn_tail_aside_too(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    file = store.append(small())
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:100])
    with caplog.at_level(logging.WARNING):
        assert len(store.load()) == 1
    assert file.read_bytes() == whole
    assert file.with_name("groupnorm_silu.jsonl.torn").read_bytes() == whole[:100] + b"\n"
    assert "moved its 100 bytes" in caplog.text


WRITER = """
import sys
from pathlib import Path
from harness.store import Store
from tests.builders import Arm, measurement
store = Store(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    store.append(measurement({"inhouse.twopass": Arm()}, seed=int(sys.argv[2]), blocks=400, reason=str(n)))
"""


def start_writer(root: Path, seed: int, lines: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(seed), str(lines)], cwd=Path.cwd())


@pytest.mark.defence("store_lock")
def test_a_writer_waits_for_the_one_before(store: Store) -> None:
    file = store.append(small(1))
    other = threading.Thread(target=store.append, args=(small(2),))
    with FileLock(f"{file}.lock"):
        other.start()
        other.join(timeout=0.5)
        assert other.is_alive()
        assert len(store.load()) == 1
    other.join(timeout=30)
    assert len(store.load()) == 2


def test_two_writers_at_once_lose_nothing(store: Store) -> None:
    writers = [start_writer(store.root, seed, 25) for seed in (1, 2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    for seed in (1, 2):
        mine = [stored.measurement.reason for stored in store.load() if stored.measurement.seed == seed]
        assert mine == [str(n) for n in range(25)]


def test_a_writer_killed_at_any_time_leaves_a_store_that_reads(store: Store) -> None:
    file = store.file(H200.key, "groupnorm_silu")
    for attempt in range(3):
        before = file.stat().st_size if file.exists() else 0
        writer = start_writer(store.root, attempt, 10_000)
        deadline = time.monotonic() + 120
        while (not file.exists() or file.stat().st_size == before) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(timeout=10)
        reasons = [s.measurement.reason for s in store.load() if s.measurement.seed == attempt]
        assert reasons == [str(n) for n in range(len(reasons))]
        assert reasons
    store.append(small())
    assert store.load()[-1].measurement == small()


def rewrite_record(file: Path, **changes: object) -> None:
    record = json.loads(file.read_text())["record"] | changes
    file.write_bytes(encode(record))


def test_processes_of_earlier_formats_are_read_and_those_of_a_later_one_are_not(tmp_path: Path) -> None:
    store = ProcessStore(tmp_path)
    of = process({"inhouse.k": 2.0}, statuses={"inhouse.k": ArmStatus.DECIDED})
    file = store.append(of)
    assert store.load()[0].record == of
    assert of.schema_version == 3
    for earlier in (1, 2):
        rewrite_record(file, schema_version=earlier)
        assert store.load()[0].record.schema_version == earlier
    rewrite_record(file, schema_version=4)
    with pytest.raises(UserError, match="written in format 4, this harness reads up to 3; update the harness"):
        store.load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "written in format 2, this harness reads up to 1; update the harness"),
        ({"schema_version": 0}, "schema_version: Input should be 1"),
        ({"mood": "good"}, "mood: Extra inputs are not permitted"),
        ({"op": "rmsnorm"}, "belongs in nvidia-h200-132sm-141gib-driver570/rmsnorm.jsonl"),
    ],
)
def test_a_record_that_cannot_be_understood_is_one_sentence(
    store: Store, changes: dict[str, object], message: str
) -> None:
    file = store.append(small())
    rewrite_record(file, **changes)
    with pytest.raises(UserError, match=rf"groupnorm_silu\.jsonl:1: .*{message}"):
        store.load()


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b"null", b'{"record": 3, "sha256": "x"}', b"\xff\xfe", b"{" * 5000]
)
def test_a_line_that_is_no_line_of_the_store_is_one_sentence(store: Store, line: bytes) -> None:
    file = store.append(small())
    file.write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"groupnorm_silu\.jsonl:1: not a line of the store"):
        store.load()


def test_find_gives_the_newest_measurement_that_was_finished(store: Store) -> None:
    old, new = small(1), small(2).model_copy(update={"started_at": "2026-12-02T00:00:00Z"})
    key = resume_key_of(old)
    assert store.find(key, old.op) is None
    for one in (new, old):
        store.append(one)
    store.append(measurement(ARMS, status=RunStatus.THROTTLED, started_at="2026-12-03T00:00:00Z"))
    found = store.find(key, old.op)
    assert found is not None
    assert found.measurement == new
    assert found.line == 1


def test_resume_key_of_parts_is_that_of_the_measurement() -> None:
    one = measurement({"sglang.fused": Arm(provider_version="0.5.23")})
    arms = {"sglang.fused": ArmIdentity("0.5.23", "c" * 64)}
    assert resume_key_of(one) == resume_key(one.op, one.case, None, one.environment, arms, {"budget_s": 2.0})


CHANGED = {
    "op": measurement(ARMS, op="rmsnorm"),
    "dims": measurement(ARMS, of=case(dims={"N": 1, "C": 512, "T": 5, "H": 32, "W": 33})),
    "context": measurement(ARMS, context="conv"),
    "card": measurement(ARMS, env=environment(H200.model_copy(update={"uuid": "GPU-2"}))),
    "op sources": measurement(ARMS, env=environment(op_sha256="other")),
    "package": measurement(ARMS, env=environment(triton="3.7.0")),
    "arm added": measurement({**ARMS, "vllm.gn": Arm()}),
    "provider version": measurement(ARMS | {"inhouse.twopass": Arm(provider_version="2")}),
    "settings": measurement(ARMS, settings={"budget_s": 3.0}),
}
SAME = {
    "seed of the samples": measurement(ARMS, seed=5),
    "boot": measurement(ARMS, env=environment(H200.model_copy(update={"boot_id": "boot-2"}))),
    "calls per step": measurement(ARMS, of=case(calls=7)),
    "a case of the same shape": measurement(ARMS, of=case("other", model="wan", dims=case().dims)),
    "commit": measurement(ARMS, env=environment().model_copy(update={"git_sha": None})),
}


@pytest.mark.parametrize("what", CHANGED)
def test_resume_key_changes_with(what: str) -> None:
    assert resume_key_of(CHANGED[what]) != resume_key_of(measurement(ARMS))


@pytest.mark.parametrize("what", SAME)
def test_resume_key_does_not_change_with(what: str) -> None:
    assert resume_key_of(SAME[what]) == resume_key_of(measurement(ARMS))


def test_what_reads_evidence_does_not_import_torch() -> None:
    modules = "harness.store, harness.sources"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.defence("store_whole_or_nothing")
def test_disk_that_takes_no_whole_line_leaves_nothing_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store.append(small(1))
    before = file.read_bytes()
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if os.fstat(descriptor).st_size > len(before):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:100])

    monkeypatch.setattr("harness.jsonl.os.write", full)
    with pytest.raises(UnfitError, match=r"cannot be written \(No space left on device\); what was measured before is"):
        store.append(small(2))
    assert file.read_bytes() == before
    monkeypatch.undo()
    store.append(small(2))
    assert len(store.load()) == 2


def test_torn_line_on_a_disk_that_is_only_read_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store.append(small(1))
    file.write_bytes(file.read_bytes() + b'{"record":')

    def read_only(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("harness.jsonl._lock", read_only)
    assert len(store.load()) == 1
    assert file.read_bytes().endswith(b'{"record":')
