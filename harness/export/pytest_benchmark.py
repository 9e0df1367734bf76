"""The JSON of pytest-benchmark, which `pytest-benchmark compare` and the common benchmark actions read.

One benchmark for each arm of the newest valid measurement of each case on one device. A round is one of a block's two
samples; times are seconds per call. `extra_info` holds the ratio to torch.compile, which is what to look at: the
format itself knows no pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import numpy as np

from harness.schema.measurement import ArmRecord, Measurement
from harness.stats.units import FloatArray
from harness.store import Stored
from harness.verdict.compare import Staleness, compare

VERSION = "5.1.0"
"""Of pytest-benchmark whose format this is."""


def document(measurements: Iterable[Stored]) -> dict[str, Any]:
    """The whole file. The measurements are of one device; raises ValueError without a valid one."""
    newest: dict[tuple[str, str, str | None], Stored] = {}
    for stored in sorted(measurements, key=lambda one: (one.measurement.started_at, one.line)):
        of = stored.measurement
        if not compare(of.case, stored, Staleness(), 0).invalid:
            newest[of.op, of.case.id, of.context] = stored
    if not newest:
        raise ValueError("no valid measurement")
    last = max((stored.measurement for stored in newest.values()), key=lambda of: of.started_at)
    return {
        "machine_info": _machine(last),
        "commit_info": _commit(last),
        "benchmarks": [entry for stored in newest.values() for entry in _benchmarks(stored)],
        "datetime": datetime.fromisoformat(last.started_at).isoformat(),
        "version": VERSION,
    }


def _machine(of: Measurement) -> dict[str, Any]:
    environment = of.environment
    return {
        "node": environment.device.key,
        "processor": environment.device.name,
        "machine": environment.device.type,
        "python_version": environment.python,
        "system": "Linux",
        "cpu": {"brand_raw": environment.device.name, "count": environment.device.sm_count},
        "driver": environment.driver,
        "cuda": environment.cuda,
        "packages": dict(environment.packages),
    }


def _commit(of: Measurement) -> dict[str, Any]:
    sha = of.environment.git_sha or ""
    return {
        "id": sha.removesuffix("+dirty") or "unversioned",
        "time": of.started_at,
        "author_time": of.started_at,
        "dirty": sha.endswith("+dirty"),
        "project": "dit-kernel-harness",
        "branch": "(unknown)",
    }


def _benchmarks(stored: Stored) -> Iterable[dict[str, Any]]:
    of = stored.measurement
    judged = {arm.id: arm for arm in compare(of.case, stored, Staleness(), 0).arms}
    for arm in of.arms:
        verdict = judged[arm.id]
        if verdict.time_us is None or verdict.reason:
            continue
        where = f"{of.case.id}/{of.context}" if of.context else of.case.id
        ratio = verdict.ratio
        yield {
            "group": f"{of.op} {where}",
            "name": f"{of.op}[{where}-{arm.id}]",
            "fullname": f"{of.op}[{where}-{arm.id}]",
            "params": {"case": of.case.id, "context": of.context, "arm": arm.id},
            "param": f"{where}-{arm.id}",
            "extra_info": {
                "ratio_to_torch_compile": [ratio.estimate, ratio.lower, ratio.upper] if ratio else None,
                "outcome": str(verdict.outcome),
                "evidence": f"results/{stored.file}#L{stored.line}",
                "sha256": stored.sha256,
            },
            "options": {
                "disable_gc": False,
                "timer": str(of.method),
                "min_rounds": len(of.orders),
                "max_time": 0.0,
                "min_time": 0.0,
                "warmup": True,
            },
            "stats": _stats(1e-6 * np.array(arm.samples_us, dtype=np.float64).ravel(), arm),
        }


def _stats(times_s: FloatArray, arm: ArmRecord) -> dict[str, Any]:
    """As pytest-benchmark computes them from the rounds."""
    q1, median, q3 = (float(value) for value in np.percentile(times_s, [25, 50, 75]))
    mean, stddev, iqr = float(times_s.mean()), float(times_s.std(ddof=1)), q3 - q1
    inside = times_s[(times_s >= q1 - 1.5 * iqr) & (times_s <= q3 + 1.5 * iqr)]
    beyond_sd = int((np.abs(times_s - mean) > stddev).sum())
    beyond_iqr = len(times_s) - len(inside)
    return {
        "min": float(times_s.min()),
        "max": float(times_s.max()),
        "mean": mean,
        "stddev": stddev,
        "rounds": len(times_s),
        "median": median,
        "iqr": iqr,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": beyond_iqr,
        "stddev_outliers": beyond_sd,
        "outliers": f"{beyond_sd};{beyond_iqr}",
        "ld15iqr": float(inside.min()),
        "hd15iqr": float(inside.max()),
        "ops": 1 / mean,
        "total": float(times_s.sum()),
        "iterations": max(1, arm.launches),
    }
