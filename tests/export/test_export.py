"""What is exported is read by the tools it is for."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import harness
from harness.errors import UserError
from harness.export.command import Format, export
from harness.export.pytest_benchmark import document
from harness.schema.vocabulary import RunStatus
from harness.store import Store
from tests.builders import H200, LAPTOP, Arm, case, environment, measurement, stored

ARMS = {"inhouse.k": Arm(1.5), "sglang.k": Arm(0.8)}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    store = Store(tmp_path / "results")
    store.append(measurement(ARMS))
    store.append(measurement(ARMS, of=case("b"), base_us=200.0))
    return tmp_path / "results"


def test_pytest_benchmark_compares_two_exports(results: Path, tmp_path: Path) -> None:
    export(tmp_path / "0001_old.json", Format.PYTEST_BENCHMARK, results)
    Store(results).append(measurement({"inhouse.k": Arm(1.4)}, started_at="2026-12-02T10:00:00Z", seed=5))
    export(tmp_path / "0002_new.json", Format.PYTEST_BENCHMARK, results)
    command = [
        str(Path(sys.executable).with_name("pytest-benchmark")),
        "compare",
        "--sort=name",
        "--columns=min,mean,rounds",
    ]
    files = [str(tmp_path / "0001_old.json"), str(tmp_path / "0002_new.json")]
    done = subprocess.run(
        [*command, *files, f"--csv={tmp_path / 'out.csv'}"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "benchmark 'groupnorm_silu mid'" in done.stdout
    read = pd.read_csv(tmp_path / "out.csv")
    mine = read[read["name"].str.contains("mid-inhouse.k")]
    assert sorted(mine["mean"] * 1e6) == pytest.approx([100 / 1.5, 100 / 1.4], rel=0.005)
    assert set(mine["rounds"]) == {48}


def test_the_stats_are_those_of_pytest_benchmark() -> None:
    from pytest_benchmark.stats import Stats

    of = measurement(ARMS)
    arm = of.arm("inhouse.k")
    assert arm is not None
    theirs = Stats()
    for sample in np.array(arm.samples_us).ravel():
        theirs.update(1e-6 * float(sample))
    found = document(stored(of))
    (mine,) = (one["stats"] for one in found["benchmarks"] if one["params"]["arm"] == "inhouse.k")
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "ops", "total", "stddev_outliers"):
        assert mine[name] == pytest.approx(getattr(theirs, name), rel=1e-9), name
    assert mine["iqr"] == pytest.approx(theirs.iqr, rel=0.2), "its quartiles interpolate otherwise"


def test_the_benchmark_action_finds_what_it_reads() -> None:
    """github-action-benchmark, tool `pytest`: fullname, stats.ops, stats.stddev, stats.rounds, stats.mean."""
    found = json.loads(json.dumps(document(stored(measurement(ARMS)))))
    assert set(found) >= {"machine_info", "commit_info", "benchmarks", "datetime", "version"}
    assert found["commit_info"]["id"] == "0123456789abcdef0123456789abcdef01234567"
    for one in found["benchmarks"]:
        assert one["fullname"].startswith("groupnorm_silu[mid-")
        assert one["stats"]["ops"] == pytest.approx(1 / one["stats"]["mean"])
        assert one["stats"]["rounds"] == 48
    ratio, low, high = next(
        one["extra_info"]["ratio_to_torch_compile"]
        for one in found["benchmarks"]
        if one["params"]["arm"] == "inhouse.k"
    )
    assert low < ratio < high
    assert ratio == pytest.approx(1.5, rel=0.01)


def test_only_the_newest_valid_measurement_is_exported() -> None:
    runs = [
        measurement({"inhouse.k": Arm(1.5)}),
        measurement({"inhouse.k": Arm(1.2)}, started_at="2026-12-03T10:00:00Z"),
        measurement({"inhouse.k": Arm(9.0)}, started_at="2026-12-04T10:00:00Z", status=RunStatus.THROTTLED),
    ]
    found = [one for one in document(stored(*runs))["benchmarks"] if one["params"]["arm"] == "inhouse.k"]
    assert [one["stats"]["mean"] * 1e6 for one in found] == [pytest.approx(100 / 1.2, rel=0.01)]


def test_csv_and_parquet_are_the_frame(results: Path, tmp_path: Path) -> None:
    frame = harness.load(results)
    export(tmp_path / "a.csv", Format.CSV, results)
    export(tmp_path / "a.parquet", Format.PARQUET, results)
    from_csv = pd.read_csv(tmp_path / "a.csv")
    assert list(from_csv.columns) == list(frame.columns)
    assert from_csv["time_us"].to_numpy() == pytest.approx(frame["time_us"].to_numpy(dtype=float), nan_ok=True)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), frame, check_dtype=False)


def test_parquet_without_pyarrow_is_a_sentence(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(self: pd.DataFrame, *args: Any, **kwargs: Any) -> None:
        raise ImportError("pyarrow")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", without)
    with pytest.raises(UserError, match=r"pyarrow, which is not installed: pip install"):
        export(tmp_path / "a.parquet", Format.PARQUET, results)
    assert not (tmp_path / "a.parquet").exists()


def test_several_devices_make_no_one_machine(results: Path, tmp_path: Path) -> None:
    Store(results).append(measurement(ARMS, env=environment(LAPTOP)))
    with pytest.raises(UserError, match="pytest-benchmark's format is of one machine; choose with --device"):
        export(tmp_path / "a.json", Format.PYTEST_BENCHMARK, results)
    export(tmp_path / "a.json", Format.PYTEST_BENCHMARK, results, device=H200.key)
    assert json.loads((tmp_path / "a.json").read_text())["machine_info"]["node"] == H200.key
    with pytest.raises(UserError, match="no valid measurement of --device other"):
        export(tmp_path / "a.json", Format.PYTEST_BENCHMARK, results, device="other")


@pytest.mark.parametrize(
    ("where", "what"), [("nowhere/x.csv", "lies in a folder that is not there"), ("", "is a folder")]
)
def test_an_output_that_can_be_no_file_is_refused_by_its_name(
    results: Path, tmp_path: Path, where: str, what: str
) -> None:
    output = tmp_path / where
    with pytest.raises(UserError, match=f"--output {output} {what}; name a file in a folder that is."):
        export(output, Format.CSV, results)
