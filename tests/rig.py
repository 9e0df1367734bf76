"""What tests of the measuring need: tiny cases, a stub of the supervisor's line, one comparison in this process."""

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from candidates.rmsnorm.op import OP as RMSNORM
from harness.measure import sampler
from harness.measure.comparison import Comparison
from harness.measure.ranks import ALONE, Team
from harness.op import Candidate, Device, Op
from harness.protocol import Settings, Task
from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.manifest import Tolerance
from harness.schema.measurement import ArmRecord, ControlsRecord, Measurement, TelemetryRecord
from tests.builders import LAPTOP, environment

TOLERANCE = Tolerance(atol=1e-2, rtol=1e-2)
CPU = Device(type="cpu", name="test", capability=(0, 0), sm_count=2, l2_bytes=1 << 14, memory_bytes=1 << 32)
"""A CPU with a tiny cache, so that a few kilobytes rotate as cold."""
CONTROLS = ControlsRecord(noop_us=0.1, copy_bytes_per_us=1e9, noop_limit_us=5.0, passed=True)


def rmsnorm_case(
    dims: dict[str, int] | None = None,
    *,
    dtype: Dtype = Dtype.BF16,
    layout: Layout = Layout.CONTIGUOUS,
    rehearsal: dict[str, int] | None = None,
    case_id: str = "tiny",
    contexts: tuple[str, ...] = (),
) -> Case:
    """A case of RMSNorm whose twin is smaller than itself, so that tests can tell the probe's calls from the gate's."""
    dims = dims or {"B": 2, "S": 16, "D": 64}
    return Case(
        id=case_id,
        model="toy",
        dims=dims,
        params={"eps": 1e-6, "rounding": "once", "weight": True},
        dtype=dtype,
        layout=layout,
        calls=1,
        step="a step of a toy",
        source="made up for a test of the harness",
        confidence=Confidence.QUOTED,
        rehearsal=rehearsal or {name: size if name == "D" else max(size // 4, 1) for name, size in dims.items()},
        contexts=contexts,
    )


class StubLink:
    """`harness.measure.link.Link` without a supervisor; remembers what was announced."""

    def __init__(self, void: Callable[[float, float], str] = lambda start_s, stop_s: "") -> None:
        self.begun: list[tuple[str, str]] = []
        self.team: Team = ALONE
        self._void = void

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """Remember the step."""
        self.begun.append((arm, phase))

    def ended(self, error: str) -> None:
        """Ignored."""

    def block_void(self, start_s: float, stop_s: float) -> str:
        """What the test says."""
        return self._void(start_s, stop_s)

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """Only the count of void blocks."""
        return TelemetryRecord(available=False, blocks_void=void)

    def blocks(self, done: int, most: int) -> None:
        """Ignored."""


def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graphs run eagerly: seconds of C++ compilation saved where Inductor is not what is tested."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        import torch._inductor.compile_fx as inductor

    def run_eagerly(graph: torch.fx.GraphModule, inputs: Sequence[Tensor], **_: object) -> Callable[..., object]:
        forward: Callable[..., object] = graph.forward
        return forward

    monkeypatch.setattr(inductor, "compile_fx", run_eagerly)


def comparison(
    candidates: Sequence[Candidate], *, op: Op = RMSNORM, device: Device = CPU, link: StubLink | None = None,
    controls: ControlsRecord = CONTROLS, seconds_per_arm: float = 0.05,
) -> Comparison:  # fmt: skip
    """A comparison in this process, sampled briefly."""
    return Comparison(
        op,
        list(candidates),
        {},
        TOLERANCE,
        device,
        environment(LAPTOP),
        controls,
        "fresh",
        Settings(seconds_per_arm=seconds_per_arm),
        link or StubLink(),
    )


def arm_of(measurement: Measurement, candidate: Candidate | str) -> ArmRecord:
    """The arm's record."""
    arm = measurement.arm(candidate if isinstance(candidate, str) else candidate.id)
    assert arm is not None, f"{candidate} is not in the measurement; {measurement.status}: {measurement.reason}"
    return arm


def measured(
    *candidates: Candidate, case: Case | None = None, context: str | None = None, op: Op = RMSNORM,
    link: StubLink | None = None, device: Device = CPU, controls: ControlsRecord = CONTROLS,
) -> Measurement:  # fmt: skip
    """One measurement of these candidates."""
    task = Task(case=case or rmsnorm_case(), context=context)
    return comparison(candidates, op=op, device=device, link=link, controls=controls).run(task)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Inductor and hardly a warm-up: for tests that ask what is refused, not how fast anything is."""
    without_inductor(monkeypatch)
    monkeypatch.setattr(sampler, "_WARM_UP_S", 0.02)
    monkeypatch.setattr(sampler, "_WARM_UP_LIMIT_S", 0.02)
