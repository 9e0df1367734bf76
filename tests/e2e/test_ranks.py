"""A model split over two processes: timed together, judged on each, and what one of them does is known by its name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from harness import device_lock, survey
from harness.cli import app
from harness.e2e.eta import Ahead
from harness.e2e.protocol import CellSettings
from harness.e2e.runner import CellRunner, Outcome
from harness.e2e.select import cells_of
from harness.errors import ExitCode
from harness.isolate import Progress
from harness.measure.telemetry import Poll, Probe
from harness.schema.process import ModelRole, ProcessRecord
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import ProcessStore
from tests.candidates import ranked
from tests.e2e.late_rank import SAMPLES
from tests.e2e.twins import ROOT, workloads
from tests.rig import TOLERANCE
from tests.test_cli import harness
from tests.test_ranks import left_behind

OP, MODEL = "allreduce_rmsnorm", "qwen3-omni-thinker-tp2"
BUDGET_S, DELAY_MS = 10.0, 20.0


class Quiet(Probe):
    """Nobody else on the machine."""

    def poll(self, worker_pid: int) -> Poll:
        return Poll(at_s=monotonic())


class Notes(Progress):
    """Keeps what a person would read."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def worker_path() -> str:
    """What processes started here import from."""
    return os.pathsep.join(filter(None, (str(ROOT / "tests/worker_site"), str(ROOT), os.environ.get("PYTHONPATH"))))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of processes without Inductor and with short samples, that this test's folder marks."""
    return {
        "PYTHONPATH": worker_path(),
        "HARNESS_TEST_NO_INDUCTOR": "1",
        "HARNESS_TEST_SAMPLE_S": "0.02",
        "HARNESS_TEST_MARK": str(tmp_path),
    }


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: dict[str, str]
) -> Callable[..., tuple[ProcessRecord | Outcome, Notes]]:
    """Measures one process of the prefill with these of `tests.e2e.rank_candidates`, and is interrupted after it."""
    monkeypatch.setattr(device_lock, "_FOLDER", tmp_path)
    (cell,) = cells_of(OP, workloads(), [f"{MODEL}/prefill-2048"])

    def go(*names: str) -> tuple[ProcessRecord | Outcome, Notes]:
        notes = Notes()
        records: list[ProcessRecord] = []

        def enough(record: ProcessRecord, ahead: Ahead) -> None:
            records.append(record)
            raise KeyboardInterrupt

        with CellRunner(
            ROOT,
            tmp_path / ".bench",
            ProcessStore(tmp_path / "results"),
            "cpu",
            CellSettings(budget_s=BUDGET_S),
            notes,
            extra=("tests.e2e.rank_candidates",),
            probe=lambda kind, uuid: Quiet(),
            environment=environment,
        ) as runner:
            try:
                asked = tuple(f"torch.{name}" for name in names)
                return runner.run(cell, TOLERANCE, asked, fresh=True, on_record=enough), notes
            except KeyboardInterrupt:
                return records[0], notes

    return go


def reason(record: ProcessRecord, name: str) -> str:
    arm = record.arm(f"torch.{name}")
    assert arm is not None
    return f"{arm.status}: {arm.reason}"


@pytest.mark.timeout(240)
def test_two_ranks_are_one_process_of_a_cell(
    run: Callable[..., tuple[ProcessRecord | Outcome, Notes]], tmp_path: Path
) -> None:
    record, notes = run("gathered", "off_on_rank_1", "killed_on_rank_1")
    assert isinstance(record, ProcessRecord), (record, notes.texts)
    assert not left_behind(f"HARNESS_TEST_MARK={tmp_path}"), "after an interrupt, too"
    assert reason(record, "killed_on_rank_1").startswith("CRASHED: in checking every call: rank 1 killed by SIGKILL")
    assert reason(record, "off_on_rank_1").startswith("GATE_FAILED: rank 1: call 1: ")
    assert reason(record, "gathered") == "OK: "
    assert record.status is RunStatus.MEASURED, record.reason
    assert record.ranks is not None
    assert len(record.ranks.devices) == 2
    assert {arm.role for arm in record.arms} == set(ModelRole) - {ModelRole.POSITIVE}
    for arm in record.arms:
        if arm.status is ArmStatus.OK:
            assert arm.rank_times is not None
            assert len(arm.times_ms) == len(arm.rank_times.durations_us) == record.pairs // 2 > 0


@pytest.mark.defence("ranks_last_entry")
@pytest.mark.timeout(120)
def test_a_late_rank_is_no_slow_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tests/measure/test_rank_clock.py` has it: the least of many times, and of the naive ones the middle."""
    monkeypatch.setenv("PYTHONPATH", worker_path())
    monkeypatch.setenv("DELAY_US", str(1e3 * DELAY_MS))
    seen = ranked.run("tests.e2e.late_rank", 2)
    assert seen[0] == seen[1], "the ranks agree"
    least, middle = ({name: values[at] for name, values in seen[0].items()} for at in (0, SAMPLES // 2))
    assert least["time"] > 0
    assert abs(least["late time"] - least["time"]) < DELAY_MS / 4
    assert middle["late naive"] - least["time"] > DELAY_MS * 3 / 4, "what a maximum over the ranks would say"
    assert middle["late skew"] > DELAY_MS * 3 / 4


def project(folder: Path, ranks: int = 2) -> Path:
    """A project of this op and its model over so many ranks."""
    (folder / "reports").mkdir()
    (folder / "shapes" / "workloads").mkdir(parents=True)
    for name in ("candidates", "constraints-gpu.txt", f"shapes/{OP}.yaml"):
        (folder / name).symlink_to(ROOT / name)
    file = Path("shapes", "workloads", f"{MODEL}.yaml")
    (folder / file).write_text((ROOT / file).read_text().replace("\nranks: 2\n", f"\nranks: {ranks}\n"))
    return folder


def test_what_cells_of_more_ranks_than_devices_need_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project(tmp_path, ranks=64))
    nothing_wrong = SimpleNamespace(of=lambda op: SimpleNamespace(manifest=()), problems=(), broken={})
    monkeypatch.setattr(survey, "survey", lambda *_: SimpleNamespace(**vars(nothing_wrong), device_type="cpu"))
    done = CliRunner().invoke(app, ["e2e", OP, "--device", "cpu"])
    assert done.exit_code == ExitCode.UNFIT, done.output
    said = " ".join(done.output.split())
    assert f"{OP}: cells of 64 ranks were not run (2 to measure): they need 64 cores, here are " in said
    assert not ProcessStore(tmp_path / "results").load(OP)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_rehearsal_of_two_ranks_ends_well_and_is_printed(tmp_path: Path) -> None:
    """The decode: each rank has its heads' share of the cache."""
    asked = ("--model", f"{MODEL}/decode-1", "--budget", str(BUDGET_S), "--arm", "inhouse.nccl_triton_rmsnorm")
    done = harness(project(tmp_path), "e2e", OP, "--device", "cpu", *asked, HARNESS_TEST_SAMPLE_S="0.02")
    assert done.returncode == ExitCode.DONE, done.stderr
    records = [one.record for one in ProcessStore(tmp_path / "results").load(OP)]
    assert [record.process for record in records] == list(range(len(records)))
    assert len(records) >= 2
    checked = records[0].arm("inhouse.nccl_triton_rmsnorm")
    assert checked is not None
    assert checked.status is ArmStatus.REHEARSED, checked.reason
    assert f"{OP} in {MODEL}/decode-1" in done.stdout
    row = json.loads((tmp_path / "reports" / "verdicts.json").read_text())["rows"][0]
    assert row["cells"][0]["ranks"]["ranks"] == 2
