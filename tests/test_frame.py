"""The frame holds what the evidence holds, in documented columns; importing `harness` stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness.errors import UserError
from harness.frame import COLUMNS
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import ProcessStore, Store
from tests.builders import H200, LAPTOP, Arm, environment, measurement
from tests.e2e_builders import process

ABSENT = Arm(status=ArmStatus.NOT_INSTALLED, reason="not here")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    store = Store(root)
    store.append(measurement({"inhouse.k": Arm(1.5), "vllm.k": ABSENT}, op="rmsnorm"))
    store.append(measurement({"inhouse.k": Arm(1.2)}, status=RunStatus.THROTTLED, reason="hot"))
    store.append(measurement({"inhouse.k": Arm(0.9)}, env=environment(LAPTOP)))
    ProcessStore(root).append(process({"inhouse.k": 2.0}))
    return root


def test_every_arm_has_a_row_with_its_figures(results: Path) -> None:
    frame = harness.load(results)
    assert tuple(frame.columns) == COLUMNS
    assert len(COLUMNS) == len(set(COLUMNS)) > 40
    assert len(frame) == 4 + 3 + 3 + 4
    mine = frame[(frame["op"] == "rmsnorm") & (frame["arm"] == "inhouse.k")].iloc[0]
    assert (mine["stage"], mine["case"], mine["shape"], mine["dtype"]) == (
        "microbench",
        "mid",
        "1x512x5x32x32",
        "bfloat16",
    )
    assert mine["time_us"] == pytest.approx(100 / 1.5, rel=0.01)
    assert mine["ratio_lower"] < 1.5 < mine["ratio_upper"]
    assert (mine["outcome"], mine["valid"], mine["torch"]) == ("FASTER", True, "2.11.0+cu130")
    assert str(mine["started_at"]) == "2026-12-01 10:00:00+00:00"
    assert (mine["file"], mine["line"]) == (f"{H200.key}/rmsnorm.jsonl", 1)
    absent = frame[frame["arm"] == "vllm.k"].iloc[0]
    assert (absent["status"], absent["valid"], absent["reason"]) == ("NOT_INSTALLED", False, "not here")
    assert not frame[frame["reason"].str.startswith("THROTTLED")]["valid"].any()
    run = frame[(frame["stage"] == "e2e") & (frame["arm"] == "inhouse.k")].iloc[0]
    assert (run["case"], run["process"], run["sequence"]) == ("toy-dit/step", 0, "s1")
    assert run["time_us"] == pytest.approx(98_000, rel=0.01)
    assert run["ratio"] == pytest.approx(1 / 0.98, rel=0.005)


def test_a_device_or_a_file_is_a_part_of_it(results: Path) -> None:
    whole = harness.load(results)
    gpu = harness.load(results / H200.key)
    assert len(gpu) == len(whole) - 3
    assert set(gpu["device_key"]) == {H200.key}
    assert len(harness.load(str(results / H200.key / "rmsnorm.jsonl"))) == 4
    assert set(harness.load(results / H200.key / "e2e" / "groupnorm_silu.jsonl")["stage"]) == {"e2e"}


def test_a_path_without_evidence_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no evidence there; name results/, a device's folder"):
        harness.load(tmp_path)


def test_importing_harness_imports_nothing_heavy() -> None:
    code = "import harness, sys; print(sorted({'pandas', 'numpy', 'torch', 'pydantic', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
