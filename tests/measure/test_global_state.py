"""Settings of the whole process: every change is seen, said and put back; a candidate that makes one is out."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from candidates.rmsnorm.op import OP
from harness.measure import global_state, timing
from harness.measure.arms import Arm
from harness.measure.clock import Timed, WallClock
from harness.measure.global_state import changes, snapshot, watched
from harness.op import Args, Candidate
from harness.schema.vocabulary import ArmStatus, RunStatus
from tests.evil import global_state as evil
from tests.rig import arm_of, comparison, measured, quick, rmsnorm_case


@pytest.fixture(scope="module", autouse=True)
def _configs() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        global_state.load_configs()


def _inductor() -> None:
    torch._inductor.config.max_autotune = True
    torch._inductor.config.triton.cudagraphs = True


def _environment() -> None:
    os.environ["TORCHINDUCTOR_SOMETHING"] = "1"
    os.environ.pop("OMP_NUM_THREADS")


CHANGES: dict[str, tuple[Callable[[], object], str]] = {
    "allow_tf32": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
        "torch.backends.cuda.matmul.fp32_precision none -> tf32",
    ),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("high"),
        "float32 matmul precision highest -> high",
    ),
    "new tf32 switch": (
        lambda: setattr(torch.backends, "fp32_precision", "tf32"),
        "torch.backends.fp32_precision none -> tf32",
    ),
    "new tf32 switch of matmul": (
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        "torch.backends.cuda.matmul.fp32_precision none -> tf32",
    ),
    "cudnn": (lambda: setattr(torch.backends.cudnn, "benchmark", True), "torch.backends.cudnn.benchmark False -> True"),
    "sdp": (lambda: torch.backends.cuda.enable_flash_sdp(False), "torch.backends.cuda.flash_sdp True -> False"),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), "the default dtype torch.float32 -> torch.float64"),
    "device": (lambda: torch.set_default_device("meta"), "the default device cpu -> meta"),
    "grad": (lambda: torch.set_grad_enabled(not torch.is_grad_enabled()), "grad mode "),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms (False, False) -> ("),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads "),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), "autocast on cpu False -> True"),
    "stance": (lambda: torch.compiler.set_stance("force_eager"), "torch.compiler's stance default -> force_eager"),
    "inductor": (_inductor, "torch._inductor.config.max_autotune False -> True, torch._inductor.config.triton.cudagr"),
    "dynamo": (lambda: setattr(torch._dynamo.config, "disable", True), "torch._dynamo.config.disable False -> True"),
    "environment": (_environment, "$OMP_NUM_THREADS 1 -> unset, $TORCHINDUCTOR_SOMETHING unset -> 1"),
}


@pytest.mark.defence("settings_watch")
@pytest.mark.parametrize("what", CHANGES)
def test_change_is_seen_said_and_put_back(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    change, sentence = CHANGES[what]
    before = snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watched() as settings:
            change()
    assert settings.changed.startswith("changes global settings: ")
    assert sentence in settings.changed
    assert changes(before, snapshot()) == {}


def test_change_is_put_back_when_the_step_raises() -> None:
    before = snapshot()

    def step() -> None:
        torch.set_default_dtype(torch.float64)
        raise RuntimeError

    with pytest.raises(RuntimeError), watched() as settings:
        step()
    assert changes(before, snapshot()) == {}
    assert settings.changed


def test_what_packages_set_for_themselves_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with watched() as settings:
        for name in ("TRITON_CACHE_DIR", "CUDA_HOME", "CUDA_MODULE_LOADING", "TORCH_CUDA_ARCH_LIST", "MY_SETTING"):
            monkeypatch.setenv(name, "x")
        torch._inductor.config.compile_threads = 1
    assert settings.changed == ""


# -- in a comparison ---------------------------------------------------------------------------------------------------


def refused(candidate: Candidate, reason: str) -> None:
    """The candidate is out for that reason; an honest neighbour and the baseline are timed as ever."""
    before = snapshot()
    of = measured(candidate, evil.fine)
    arm = arm_of(of, candidate)
    assert (arm.status, reason in arm.reason) == (ArmStatus.GATE_FAILED, True), (arm.status, arm.reason)
    assert arm_of(of, evil.fine).status is ArmStatus.OK, arm_of(of, evil.fine).reason
    assert of.status is RunStatus.MEASURED, of.reason
    assert changes(before, snapshot()) == {}


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    evil.calls[0] = 0


@pytest.mark.defence("settings_run")
@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (evil.runs_with_tf32, "in build: changes global settings: float32 matmul precision highest -> high"),
        (evil.forces_eager, "in build: changes global settings: torch.compiler's stance default -> force_eager"),
        (evil.prepares_deterministic, "in build: changes global settings: deterministic algorithms"),
        (evil.changes_later, "changes global settings: the default dtype torch.float32 -> torch.float64"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_candidate_that_changes_settings_is_out(candidate: Candidate, reason: str) -> None:
    refused(candidate, reason)


@pytest.mark.defence("settings_guard")
@pytest.mark.usefixtures("_quick")
def test_guard_that_changes_settings_is_out() -> None:
    refused(evil.guards_with_threads, "its guard or provider changes global settings: the number of threads")


@pytest.mark.defence("settings_sample")
@pytest.mark.usefixtures("_quick")
def test_change_while_timed_is_laid_at_the_right_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sample runs host code, it is watched."""

    class Changing(WallClock):
        def ready(self, arm: Arm, sets: list[Args], launches: int) -> Timed:
            timed = super().ready(arm, sets, launches)

            def sample_us() -> float:
                torch.backends.cudnn.benchmark = arm.id == evil.fine.id
                return timed.sample_us()

            return replace(timed, sample_us=sample_us)

    monkeypatch.setattr(timing, "team_clock", lambda device, team, *, capturable: Changing())
    of = measured(evil.fine, evil.also_fine)
    arm = arm_of(of, evil.fine)
    assert (arm.status, arm.reason) == (
        ArmStatus.GATE_FAILED,
        "in timing: changes global settings: torch.backends.cudnn.benchmark False -> True",
    )
    assert arm_of(of, evil.also_fine).status is ArmStatus.OK, arm_of(of, evil.also_fine).reason
    assert not torch.backends.cudnn.benchmark


@pytest.mark.defence("settings_import")
@pytest.mark.usefixtures("_quick")
def test_candidate_of_a_module_whose_import_changed_settings_is_never_run() -> None:
    from harness.protocol import Task

    run = comparison([evil.fine, evil.also_fine], op=OP)
    run.refused = {evil.fine.id: "its import changes global settings: grad mode True -> False"}
    of = run.run(Task(case=rmsnorm_case(), context=None))
    arm = arm_of(of, evil.fine)
    assert (arm.status, arm.reason) == (ArmStatus.GATE_FAILED, run.refused[evil.fine.id])
    assert arm.gate is None
    assert arm_of(of, evil.also_fine).status is ArmStatus.OK, arm_of(of, evil.also_fine).reason
