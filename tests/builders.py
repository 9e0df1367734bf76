"""Synthetic measurements for tests: seeded samples with known ratios. No figure here was measured anywhere."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.schema.case import Case, Confidence, Dtype, Layout
from harness.schema.claims import Claims
from harness.schema.manifest import Manifest, Row, RowType, Tolerance
from harness.schema.measurement import (
    ArmRecord,
    ControlsRecord,
    DeviceRecord,
    EnvironmentRecord,
    GateRecord,
    Measurement,
    RooflineRecord,
    Setting,
    TelemetryRecord,
)
from harness.schema.verdict import Verdicts
from harness.schema.vocabulary import ArmStatus, Cache, Contract, Kind, Method, Role, RunStatus
from harness.sources import compact_json, text_sha256
from harness.store import Stored
from harness.verdict import Present, decide

BASELINE = "torch.compile"
CONTROL = "torch.compile_control"
TWIN = "torch.compile_twin"

H200 = DeviceRecord(
    key="nvidia-h200-132sm-141gib-driver570",
    type="cuda",
    name="NVIDIA H200",
    sm_count=132,
    memory_gib=141,
    driver_major="570",
    l2_bytes=60 * 2**20,
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    boot_id="boot-1",
)
LAPTOP = DeviceRecord(
    key="cpu-fake-8core-16gib",
    type="cpu",
    name="Fake CPU",
    sm_count=8,
    memory_gib=16,
    driver_major="none",
    l2_bytes=8 * 2**20,
    uuid="cpu",
    boot_id="boot-1",
)
PACKAGES = {"torch": "2.11.0+cu130", "triton": "3.6.0", "sglang": "0.5.23"}


def environment(device: DeviceRecord = H200, op_sha256: str = "op-sources", **packages: str) -> EnvironmentRecord:
    """An environment on `device`; keyword arguments replace package versions."""
    gpu = device.type == "cuda"
    return EnvironmentRecord(
        packages={**PACKAGES, **packages},
        python="3.12.3",
        driver="570.86.15" if gpu else "none",
        cuda="13.0" if gpu else "none",
        git_sha="0123456789abcdef0123456789abcdef01234567",
        harness_sha256="harness-sources",
        op_sha256=op_sha256,
        device=device,
    )


def case(
    case_id: str = "mid",
    *,
    model: str = "hunyuan-vae",
    calls: int = 6,
    dims: Mapping[str, int] | None = None,
    confidence: Confidence = Confidence.QUOTED,
    contexts: tuple[str, ...] = (),
) -> Case:
    """A GroupNorm+SiLU case; without dims each id has a shape of its own."""
    width = 32 if case_id == "mid" else 33 + zlib.crc32(case_id.encode()) % 1000
    return Case(
        id=case_id,
        model=model,
        dims=dict(dims or {"N": 1, "C": 512, "T": 5, "H": 32, "W": width}),
        params={"groups": 32, "eps": 1e-6},
        dtype=Dtype.BF16,
        layout=Layout.CONTIGUOUS,
        calls=calls,
        step="decode of one 4x32x32 latent tile",
        source="made up for a test of the harness",
        confidence=confidence,
        rehearsal={"N": 1, "C": 32, "T": 1, "H": 8, "W": 8},
        contexts=contexts,
    )


def gate(*, passed: bool = True, reason: str = "", bit_exact: bool = False) -> GateRecord:
    """A gate record with plausible figures."""
    return GateRecord(
        passed=passed,
        reason=reason,
        oracle="float64",
        elements=2_621_440,
        literal_failures=7 if not bit_exact else 0,
        rule_failures=0 if passed else 12,
        max_abs_error_native=0.0 if bit_exact else 0.0156,
        rms_error_oracle=1.9e-3,
        rms_error_native_oracle=2.0e-3,
        max_ulp=0 if bit_exact else 2,
        p999_ulp=0 if bit_exact else 1,
        bit_exact=bit_exact,
        deterministic=True,
        variants=("normal", "large", "small", "offset"),
    )


@dataclass(frozen=True)
class Arm:
    """What a test says about one candidate: how many times faster than the baseline it truly is, or why it is out."""

    speedup: float = 1.0
    kind: Kind = Kind.TRITON
    status: ArmStatus = ArmStatus.OK
    reason: str = ""
    noise_percent: float | None = None
    gate_after_passed: bool = True
    provider_version: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


def measurement(
    arms: Mapping[str, Arm],
    *,
    op: str = "groupnorm_silu",
    of: Case | None = None,
    context: str | None = None,
    env: EnvironmentRecord | None = None,
    base_us: float = 100.0,
    twin_speedup: float = 1.0,
    control_speedup: float | None = None,
    blocks: int = 24,
    noise_percent: float = 0.2,
    seed: int = 0,
    status: RunStatus = RunStatus.MEASURED,
    reason: str = "",
    started_at: str = "2026-12-01T10:00:00Z",
    settings: Mapping[str, Setting] | None = None,
    floor_bytes: int | None = None,
) -> Measurement:
    """One stored measurement whose samples scatter log-normally around the true ratios in `arms`.

    `control_speedup` adds the same-code control; measurements of before it existed have none.
    """
    of = of or case()
    env = env or environment()
    rng = np.random.default_rng([seed, *of.id.encode()])
    measured = status is RunStatus.MEASURED
    told = {
        BASELINE: (Role.BASELINE, Arm(kind=Kind.COMPILE)),
        TWIN: (Role.TWIN, Arm(speedup=twin_speedup, kind=Kind.COMPILE)),
        **(
            {CONTROL: (Role.CONTROL, Arm(speedup=control_speedup, kind=Kind.COMPILE))}
            if control_speedup is not None
            else {}
        ),
        **{name: (Role.CANDIDATE, arm) for name, arm in arms.items()},
    }
    timed = [name for name, (_, arm) in told.items() if arm.status is ArmStatus.OK] if measured else []
    records = tuple(
        _arm(name, role, arm, name in timed, base_us, blocks, arm.noise_percent or noise_percent, rng)
        for name, (role, arm) in told.items()
    )
    return Measurement(
        op=op,
        case=of,
        context=context,
        status=status,
        reason=reason,
        environment=env,
        controls=ControlsRecord(
            noop_us=0.02, copy_bytes_per_us=4 * of.numel / (0.44 * base_us), noop_limit_us=0.5, passed=True
        ),
        roofline=RooflineRecord(
            bytes_moved=4 * of.numel, copy_us=0.45 * base_us, l2_resident=False, floor_bytes=floor_bytes
        ),
        method=Method.CUDA_GRAPH if env.device.type == "cuda" else Method.WALL,
        cache=Cache.COLD,
        rotation=31,
        rotated_bytes=31 * 4 * of.numel,
        compile_cache="fresh",
        seed=seed,
        settings=dict(settings or {"budget_s": 2.0}),
        input_fingerprints={"x": "a" * 64},
        orders=_orders(blocks, len(timed), rng) if timed else (),
        timed_arms=tuple(timed),
        arms=records,
        telemetry=TelemetryRecord(
            available=env.device.type == "cuda",
            polls=40,
            sm_clock_mhz_median=1980.0,
            sm_clock_mhz_min=1965.0,
            memory_clock_mhz_median=3201.0,
            power_w_median=412.0,
            temperature_c_max=51.0,
        ),
        phases_s={"setup": 1.5, "build": 9.25, "gate": 3.0, "timing": 4.5},
        started_at=started_at,
    )


def _arm(
    name: str,
    role: Role,
    arm: Arm,
    timed: bool,
    base_us: float,
    blocks: int,
    noise_percent: float,
    rng: np.random.Generator,
) -> ArmRecord:
    ran = arm.status is ArmStatus.OK
    mean_us = base_us / arm.speedup
    samples = mean_us * np.exp(rng.normal(0.0, noise_percent / 100.0, size=(blocks, 2)))
    compiled = arm.kind in (Kind.COMPILE, Kind.REWRITE)
    return ArmRecord(
        id=name,
        kind=arm.kind,
        role=role,
        contract=Contract.TOLERANCE,
        status=arm.status,
        reason=arm.reason,
        provider_version=arm.provider_version,
        source_sha256="c" * 64,
        gate=gate(passed=arm.status is not ArmStatus.GATE_FAILED, reason=arm.reason) if ran else None,
        gate_after=gate(passed=arm.gate_after_passed, reason="" if arm.gate_after_passed else "zeros on replay")
        if ran
        else None,
        kernels=(f"{name.split('.')[-1]}_kernel",) if ran else (),
        graph_count=1 if compiled else None,
        registration=("compiled" if compiled else "custom_op") if ran else "",
        tags=dict(arm.tags),
        build_s=2.5 if ran else 0.0,
        peak_bytes=3 * 2**20 if ran else 0,
        host_us=mean_us + 6.0 if ran else None,
        profiler_us=0.99 * mean_us if ran else None,
        do_bench_us=1.02 * mean_us if ran else None,
        launches=40 if timed else 0,
        samples_us=tuple((float(out), float(back)) for out, back in samples) if timed else (),
    )


def _orders(blocks: int, arms: int, rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(i) for i in rng.permutation(arms)) for _ in range(blocks))


def with_samples(of: Measurement, arm_id: str, samples_us: Sequence[tuple[float, float]]) -> Measurement:
    """The same measurement with one arm's samples replaced."""
    arms = tuple(
        arm.model_copy(update={"samples_us": tuple(samples_us)}) if arm.id == arm_id else arm for arm in of.arms
    )
    return of.model_copy(update={"arms": arms})


def manifest(*cases: Case, op: str = "groupnorm_silu", deciding: tuple[str, ...] = ("hunyuan-vae",)) -> Manifest:
    """A manifest of these cases."""
    return Manifest(
        op=op,
        row=Row(title="GroupNorm + SiLU", type=RowType.FUSED, order=1, triton_ref="sglang `group_norm_silu`"),
        tolerance=Tolerance(atol=1e-2, rtol=1e-2),
        deciding_models=deciding,
        cases=cases or (case(),),
    )


def stored(*measurements: Measurement) -> list[Stored]:
    """As the store would give them back, one file after another."""
    lines: dict[str, int] = {}
    found = []
    for one in measurements:
        file = f"{one.environment.device.key}/{one.op}.jsonl"
        lines[file] = lines.get(file, 0) + 1
        record = one.model_dump(mode="json")
        found.append(Stored(one, file, lines[file], text_sha256(compact_json(record))))
    return found


PRESENT = Present(
    op_sha256={"groupnorm_silu": "op-sources", "rmsnorm": "op-sources"},
    wiring_sha256={"groupnorm_silu": "wirings", "rmsnorm": "wirings"},
    pins={"torch": "2.11.0", "triton": "3.6.0", "sglang": "0.5.23"},
)
NO_CLAIMS = Claims(rows={})


def decided(*measurements: Measurement, of: Manifest | None = None, claims: Claims = NO_CLAIMS) -> Verdicts:
    """Verdicts of one op from these measurements, nothing stale unless they say so."""
    of = of or manifest()
    return decide(stored(*measurements), {of.op: of}, claims, PRESENT)
