"""Two runs are compared case by case with what differs; different GPUs are not."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.history.two_runs import compare_runs, measurements_of, welch
from harness.stats.estimators import Interval
from harness.store import Store
from tests.builders import H200, LAPTOP, Arm, case, environment, measurement, stored

ARMS = {"inhouse.k": Arm(1.3), "sglang.k": Arm(1.0)}


def test_each_arm_has_its_ratio_and_what_differs_is_said() -> None:
    new = environment(op_sha256="other", torch="2.12.0").model_copy(update={"git_sha": "f" * 40})
    a = stored(measurement(ARMS), measurement(ARMS, of=case("gone")))
    b = stored(measurement({"inhouse.k": Arm(1.3 * 1.05), "sglang.k": Arm(1.0)}, env=new, seed=3))
    found = compare_runs(a, b)
    by_arm = {one.arm: one for one in found.arms}
    assert set(by_arm) == {"torch.compile", "inhouse.k", "sglang.k"}
    ratio, low, high = by_arm["inhouse.k"].ratio
    assert low < 1.05 < high
    assert ratio == pytest.approx(1.05, abs=0.005)
    assert by_arm["torch.compile"].ratio[1] < 1 < by_arm["torch.compile"].ratio[2]
    assert (by_arm["inhouse.k"].a_us, by_arm["inhouse.k"].b_us) == pytest.approx((100 / 1.3, 100 / 1.365), rel=0.005)
    assert found.differs == (
        "torch: 2.11.0+cu130 → 2.12.0",
        "sources of groupnorm_silu: op-sources → other",
        f"commit: 0123456789abcdef0123456789abcdef01234567 → {'f' * 40}",
    )
    assert (found.only_a, found.only_b) == (("groupnorm_silu gone",), ())


def test_a_run_compared_with_itself_differs_in_nothing() -> None:
    found = compare_runs(stored(measurement(ARMS)), stored(measurement(ARMS)))
    assert found.differs == ()
    assert [one.ratio[0] for one in found.arms] == [1.0, 1.0, 1.0]


def test_the_newest_valid_measurement_counts_on_each_side() -> None:
    later = measurement({"inhouse.k": Arm(2.0)}, started_at="2026-12-05T10:00:00Z")
    broken = measurement({"inhouse.k": Arm(9.0)}, started_at="2026-12-06T10:00:00Z", twin_speedup=1.2)
    found = compare_runs(stored(measurement(ARMS)), [*stored(measurement(ARMS), later, broken)][:2])
    (mine,) = (one for one in found.arms if one.arm == "inhouse.k")
    assert mine.b_us == pytest.approx(50, rel=0.01)


@pytest.mark.defence("compare_other_gpu")
def test_different_gpus_are_refused_and_another_driver_is_not() -> None:
    h100 = H200.model_copy(update={"name": "NVIDIA H100", "key": "nvidia-h100", "memory_gib": 80})
    with pytest.raises(UserError, match=r"A was measured on NVIDIA H200 .* and B on NVIDIA H100 .* are not compared"):
        compare_runs(stored(measurement(ARMS)), stored(measurement(ARMS, env=environment(h100))))
    with pytest.raises(UserError, match="are not compared"):
        compare_runs(stored(measurement(ARMS)), stored(measurement(ARMS, env=environment(LAPTOP))))
    newer = environment(H200.model_copy(update={"uuid": "GPU-2"})).model_copy(update={"driver": "580.1"})
    found = compare_runs(stored(measurement(ARMS)), stored(measurement(ARMS, env=newer)))
    assert found.differs == ("driver: 570.86.15 → 580.1", f"card: {H200.uuid} → GPU-2")


def test_runs_without_a_case_in_common_are_refused() -> None:
    with pytest.raises(UserError, match="no case was measured on both sides"):
        compare_runs(stored(measurement(ARMS)), stored(measurement(ARMS, of=case("b"))))


def test_the_interval_holds_the_spread_between_processes() -> None:
    """However quiet each process is, two of them differ by more than their own noise."""
    quiet = Interval(0.0, -0.02, 0.02, 0.01, 11)
    found = welch(quiet, quiet)
    assert found.upper == pytest.approx(1.96 * np.sqrt(2) * 0.2, rel=0.02)
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        a, b = (Interval(float(value), 0, 0, 0.1, 11) for value in rng.normal(0, 0.2, 2) + rng.normal(0, 0.1, 2))
        inside = welch(a, b)
        covered += inside.lower < 0 < inside.upper
    assert covered / 400 > 0.92


def test_a_git_revision_is_read_as_it_was(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    store = Store(tmp_path / "results")
    store.append(measurement(ARMS))
    git("add", "results")
    git("commit", "-qm", "first")
    store.append(measurement(ARMS, of=case("b")))
    assert len(measurements_of("HEAD", tmp_path)) == 1
    assert len(measurements_of(str(tmp_path / "results"), tmp_path)) == 2
    with pytest.raises(UserError, match="nonsense: neither a path nor a git revision with results/"):
        measurements_of("nonsense", tmp_path)
    with pytest.raises(UserError, match="--output=x: neither a path nor a git revision; name a results/"):
        measurements_of("--output=x", tmp_path)
