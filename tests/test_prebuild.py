"""Builders fill the compile caches before anything is timed, and none of them outlives its time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import prebuild
from harness.measure.arms import BASELINE_ID, NATIVE_ID, TWIN_ID
from harness.microbench import Selection, tasks_of
from harness.protocol import Job, Settings
from harness.schema.manifest import load_manifest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def job() -> Job:
    manifest = load_manifest(ROOT / "shapes" / "rmsnorm.yaml")
    return Job(
        root=str(ROOT),
        op="rmsnorm",
        device_type="cpu",
        tolerance=manifest.tolerance,
        tasks=tasks_of(manifest, "cpu", Selection(cases=("talker-hidden-t1",))),
        settings=Settings(),
    )


@pytest.mark.parametrize("turn", [0, 0.75])
def test_a_builder_reports_the_first_call_of_every_arm(job: Job, turn: float) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness.prebuild", str(turn)],
        input=job.model_dump_json(),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        check=True,
    )
    times = prebuild._times.validate_json(done.stdout.splitlines()[-1])
    assert set(times) == {"talker-hidden-t1"}
    begins_with_native = next(iter(times["talker-hidden-t1"])) == NATIVE_ID
    assert begins_with_native == (turn == 0)
    assert {NATIVE_ID, BASELINE_ID, TWIN_ID, "inhouse.triton_rmsnorm"} <= set(times["talker-hidden-t1"])
    assert times["talker-hidden-t1"][BASELINE_ID] > times["talker-hidden-t1"][NATIVE_ID] > 0


def test_a_rehearsal_is_not_built_ahead(job: Job, tmp_path: Path) -> None:
    assert prebuild.build_ahead(job, job.tasks, os.environ, tmp_path / "log") == list(job.tasks)
    assert not (tmp_path / "log").exists()


def test_a_builder_that_hangs_is_ended_and_the_others_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuild, "LIMIT_S", 0.5)
    hung = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    quick = subprocess.Popen(["echo", '{"a case": {"torch.compile": 1.5}}'], stdout=subprocess.PIPE)
    assert prebuild._collect([hung, quick]) == {"a case": {"torch.compile": 1.5}}
    assert hung.poll() is not None
