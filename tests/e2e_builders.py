"""Synthetic processes of end-to-end cells: seeded times with known gains. No figure here was measured anywhere."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.schema.case import Confidence
from harness.schema.measurement import EnvironmentRecord, TelemetryRecord
from harness.schema.process import CallsRecord, ModelArmRecord, ModelRole, ProcessRecord, QualityRecord
from harness.schema.vocabulary import ArmStatus, Contract, Kind, RunStatus
from harness.schema.workload import Component, Composition, Part, Rehearsal, Workload
from harness.store import StoredProcess
from tests.builders import environment

STATIC, DYNAMIC, TWIN, CEILING = "torch.compile", "torch.compile_dynamic", "torch.compile_twin", "do_nothing"
SLOWED = "torch.compile_slowed"
ROLES = {
    STATIC: ModelRole.BASELINE,
    DYNAMIC: ModelRole.BASELINE_DYNAMIC,
    TWIN: ModelRole.TWIN,
    CEILING: ModelRole.CEILING,
    SLOWED: ModelRole.POSITIVE,
}
COMPONENT = Component(id="step", what="denoise step", inputs={"batch": 1}, rehearsal=Rehearsal(inputs={"batch": 1}))


def workload(name: str = "toy-dit", partner: str = "toy-vae", steps: Sequence[int] = (50,)) -> Workload:
    """A model whose requests are so many steps and one decode of the partner."""
    return Workload(
        workload=name,
        title=name,
        family="wan",
        source="made up for a test of the verdicts",
        confidence=Confidence.QUOTED,
        components=(COMPONENT,),
        compositions=tuple(
            Composition(
                id=f"{count}-steps",
                what=f"{count} steps and a decode",
                parts=(Part(component=f"{name}/step", times=count), Part(component=f"{partner}/step", times=1)),
                excluded="text encoder",
            )
            for count in steps
        ),
    )


def process(
    gains_pct: Mapping[str, float],
    number: int = 0,
    *,
    workload: str = "toy-dit",
    op: str = "groupnorm_silu",
    base_ms: float = 100.0,
    pairs: int = 16,
    noise_pct: float = 0.1,
    statuses: Mapping[str, ArmStatus] | None = None,
    status: RunStatus = RunStatus.MEASURED,
    sequence: str = "s1",
    env: EnvironmentRecord | None = None,
    op_bytes: int = 0,
    settings: Mapping[str, float] | None = None,
    component: Component = COMPONENT,
) -> ProcessRecord:
    """One process; `gains_pct` maps arms to the percent of the static baseline's time they save."""
    rng = np.random.default_rng([number, len(gains_pct), pairs])
    gains = {STATIC: 0.0, DYNAMIC: -2.0, TWIN: 0.0, **gains_pct}
    broken = dict(statuses or {})

    def times(gain: float) -> tuple[tuple[float, float], ...]:
        noise = rng.normal(0, noise_pct / 100, (pairs // 2, 2))
        return tuple((float(a), float(b)) for a, b in base_ms * (1 - gain / 100) * np.exp(noise))

    arms = tuple(
        ModelArmRecord(
            id=name,
            role=ROLES.get(name, ModelRole.CANDIDATE),
            kind=Kind.COMPILE if name in ROLES else Kind.TRITON,
            contract=Contract.TOLERANCE,
            status=broken.get(name, ArmStatus.OK),
            reason="broke" if name in broken else "",
            graph_count=1,
            calls=CallsRecord(expected=8, eager=8, compiled=8),
            quality=QualityRecord(rms_error=1.02, rms_error_native=1.0, bit_exact=False),
            times_ms=() if name in broken else times(gain),
        )
        for name, gain in gains.items()
    )
    timed = tuple(arm.id for arm in arms if arm.times_ms)
    return ProcessRecord(
        op=op,
        workload=workload,
        component=component,
        sequence=sequence,
        process=number,
        cold_compile=number % 2 == 0,
        p_max=None if number == 0 else 4,
        pairs=pairs,
        status=status,
        reason="" if status is RunStatus.MEASURED else "the reason",
        environment=env or environment(),
        library="diffusers 0.42.1",
        checkpoint=None,
        attention_backend="default",
        upstream={},
        e2e_sha256="e2e",
        wiring_sha256="wirings",
        seed=1,
        settings={"budget_s": 300.0, **(settings or {})},
        op_bytes=op_bytes,
        copy_bytes_per_us=4e6,
        runs_per_sample=1,
        orders=tuple(tuple(range(len(timed))) for _ in range(pairs // 2)),
        timed_arms=timed,
        arms=arms,
        start_s=20.0,
        pair_s=1.0,
        telemetry=TelemetryRecord(available=True),
        phases_s={"build": 5.0},
        started_at=f"2026-12-01T10:0{number}:00+00:00",
    )


def stored(*records: ProcessRecord) -> list[StoredProcess]:
    """The records as the store gives them."""
    return [
        StoredProcess(record, f"{record.environment.device.key}/e2e/{record.op}.jsonl", line, f"{line:064x}")
        for line, record in enumerate(records, start=1)
    ]


def sequence(gains_pct: Mapping[str, float], processes: int = 3, **more: object) -> list[ProcessRecord]:
    """So many processes of one cell; the ceiling runs in the first alone."""
    later = {name: gain for name, gain in gains_pct.items() if name != CEILING}
    return [process(gains_pct if number == 0 else later, number, **more) for number in range(processes)]  # type: ignore[arg-type]
