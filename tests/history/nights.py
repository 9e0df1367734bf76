"""Made-up nights: one measurement a night, with a step in one candidate's speed. No figure was measured anywhere."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from harness.schema.measurement import EnvironmentRecord, Measurement
from harness.store import Store
from tests.builders import Arm, environment, measurement

OLD = environment(op_sha256="a" * 64).model_copy(update={"git_sha": "a" * 40})
NEW = environment(op_sha256="b" * 64, torch="2.12.0+cu130").model_copy(update={"git_sha": "b" * 40})


def night(number: int, minutes: int = 0) -> str:
    return (datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(days=number, minutes=minutes)).isoformat(timespec="seconds")


def run(speedup: float, env: EnvironmentRecord, number: int, seed: int = 0, minutes: int = 0) -> Measurement:
    """One measurement whose process is off by a draw of 0.15 %, as processes are."""
    rng = np.random.default_rng([7, number, seed, minutes])
    return measurement(
        {"inhouse.k": Arm(speedup * float(np.exp(rng.normal(0, 0.0015))), provider_version="1.0")},
        env=env,
        seed=1000 * seed + number,
        started_at=night(number, minutes),
    )


def nights(
    root: Path, count: int, step_at: int, factor: float, build: Callable[[int], EnvironmentRecord] | None = None
) -> None:
    """Nights in which the candidate's speed changes by `factor` from night `step_at` on, with the build or without."""
    store = Store(root / "results")
    for number in range(count):
        changed = number >= step_at
        env = build(number) if build is not None else (NEW if changed else OLD)
        store.append(run(1.3 * (factor if changed else 1.0), env, number))
