"""`harness.load`: evidence as a pandas frame, one row for each arm of each measurement or process.

Columns, the same for both stages; what a stage does not have is missing (NaN, None or NaT):

| column | meaning |
| --- | --- |
| `stage` | `microbench` or `e2e` |
| `op`, `case`, `context` | what was measured; of the end-to-end stage `case` is workload/component |
| `model`, `step`, `calls` | who calls it, and how often in one step |
| `shape`, `dtype`, `layout` | of the activation |
| `arm`, `kind`, `role`, `contract`, `status` | what was timed |
| `valid`, `reason` | whether its times count, and why not |
| `outcome` | of the µbench: FASTER, TIE, SLOWER, INCONCLUSIVE, INVALID or NOT_RUN |
| `time_us`, `time_lower_us`, `time_upper_us` | per call (end to end: per run), with this process's 95 % interval |
| `ratio`, `ratio_lower`, `ratio_upper` | t(torch.compile) / t(arm), with its 95 % interval: over 1 is faster |
| `effect_log_pct` | 100 ln of that ratio |
| `host_us`, `build_s`, `peak_bytes` | launch-inclusive time per call, first call, memory of one call above its inputs |
| `copy_us`, `bytes_moved` | an equally large copy in the same run, and the bytes the op must move |
| `blocks`, `launches`, `method`, `cache` | how it was timed |
| `sequence`, `process` | of the end-to-end stage |
| `started_at` | UTC |
| `device_key`, `device`, `card`, `driver`, `cuda`, `python`, `torch`, `triton`, `provider_version` | what it ran on |
| `git_sha`, `op_sha256`, `source_sha256`, `harness_sha256` | which sources ran |
| `file`, `line`, `sha256` | the line of evidence, below the store's root |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import UserError
from harness.schema.measurement import EnvironmentRecord
from harness.schema.process import ModelRole
from harness.schema.vocabulary import RunStatus
from harness.stats.estimators import hl_interval
from harness.stats.sequences import pair_log_ratios
from harness.store import ProcessStore, Store, Stored, StoredProcess
from harness.verdict.compare import Staleness, compare, ratio_span, time_span

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = tuple(
    name.strip(" `")
    for line in (__doc__ or "").splitlines()
    if line.startswith("| `")
    for name in line.split("|")[1].split(",")
)
"""In the order of the table above."""


def load(path: Path | str) -> pd.DataFrame:
    """The evidence below `results/`, of one folder of it, or of one `.jsonl` file; columns as above.

    Raises UserError for a path that holds none and for a damaged line.
    """
    import pandas as pd

    measurements, processes = evidence(Path(path))
    rows = [*_microbench(measurements), *_end_to_end(processes)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["started_at"] = pd.to_datetime(frame["started_at"], utc=True)
    return frame


def evidence(path: Path) -> tuple[list[Stored], list[StoredProcess]]:
    """Measurements and processes below a store's root, a device's folder or in one file; raises UserError for none."""
    path = path.resolve()
    if path.is_file() and path.suffix == ".jsonl":
        if path.parent.name == "e2e":
            name = path.relative_to(path.parents[2]).as_posix()
            return [], [one for one in ProcessStore(path.parents[2]).load(path.stem) if one.file == name]
        return Store(path.parents[1]).load(path.stem, path.parent.name), []
    if any(path.glob("*.jsonl")) or any(path.glob("e2e/*.jsonl")):
        processes = [one for one in ProcessStore(path.parent).load() if one.file.startswith(f"{path.name}/")]
        return Store(path.parent).load(device_key=path.name), processes
    if any(path.glob("*/*.jsonl")) or any(path.glob("*/e2e/*.jsonl")):
        return Store(path).load(), ProcessStore(path).load()
    raise UserError(f"{path}: no evidence there; name results/, a device's folder in it, or a .jsonl file.")


def _environment(of: EnvironmentRecord) -> dict[str, Any]:
    return {
        "device_key": of.device.key,
        "device": of.device.name,
        "card": of.device.uuid,
        "driver": of.driver,
        "cuda": of.cuda,
        "python": of.python,
        "torch": of.packages.get("torch"),
        "triton": of.packages.get("triton"),
        "git_sha": of.git_sha,
        "op_sha256": of.op_sha256,
        "harness_sha256": of.harness_sha256,
    }


def _microbench(measurements: list[Stored]) -> Iterator[dict[str, Any]]:
    for stored in measurements:
        of = stored.measurement
        judged = {arm.id: arm for arm in compare(of.case, stored, Staleness(), 0).arms}
        for arm in of.arms:
            verdict = judged[arm.id]
            time, ratio, effect = verdict.time_us, verdict.ratio, verdict.effect_log_pct
            yield {
                **_environment(of.environment),
                "stage": of.stage,
                "op": of.op,
                "case": of.case.id,
                "context": of.context,
                "model": of.case.model,
                "step": of.case.step,
                "calls": of.case.calls,
                "shape": "x".join(map(str, of.case.shape)),
                "dtype": str(of.case.dtype),
                "layout": str(of.case.layout),
                "arm": arm.id,
                "kind": str(arm.kind),
                "role": str(arm.role),
                "contract": str(arm.contract),
                "status": str(arm.status),
                "valid": time is not None and not verdict.reason,
                "reason": verdict.reason,
                "outcome": str(verdict.outcome),
                **_spans(time, ratio),
                "effect_log_pct": effect.estimate if effect else None,
                "host_us": arm.host_us,
                "build_s": arm.build_s,
                "peak_bytes": arm.peak_bytes,
                "copy_us": of.roofline.copy_us if of.roofline else None,
                "bytes_moved": of.roofline.bytes_moved if of.roofline else None,
                "blocks": len(of.orders),
                "launches": arm.launches,
                "method": str(of.method),
                "cache": str(of.cache),
                "started_at": of.started_at,
                "provider_version": arm.provider_version,
                "source_sha256": arm.source_sha256,
                "file": stored.file,
                "line": stored.line,
                "sha256": stored.sha256,
            }


def _end_to_end(processes: list[StoredProcess]) -> Iterator[dict[str, Any]]:
    for stored in processes:
        of = stored.record
        base = next((arm for arm in of.arms if arm.role is ModelRole.BASELINE and arm.times_ms), None)
        for arm in of.arms:
            time = time_span(1e3 * np.array(arm.times_ms).ravel()) if arm.times_ms else None
            effect = hl_interval(pair_log_ratios(base.times_ms, arm.times_ms)) if base and arm.times_ms else None
            reason = arm.reason or ("" if of.status is RunStatus.MEASURED else f"{of.status}: {of.reason}")
            yield {
                **_environment(of.environment),
                "stage": of.stage,
                "op": of.op,
                "case": f"{of.workload}/{of.component.id}",
                "context": of.context,
                "step": of.component.what,
                "arm": arm.id,
                "kind": str(arm.kind),
                "role": str(arm.role),
                "contract": str(arm.contract),
                "status": str(arm.status),
                "valid": time is not None and not reason,
                "reason": reason,
                **_spans(time, ratio_span(effect) if effect else None),
                "effect_log_pct": effect.estimate if effect else None,
                "build_s": arm.compile_s,
                "peak_bytes": arm.peak_bytes,
                "blocks": len(of.orders),
                "launches": of.runs_per_sample,
                "method": "wall",
                "sequence": of.sequence,
                "process": of.process,
                "started_at": of.started_at,
                "provider_version": arm.provider_version,
                "source_sha256": arm.source_sha256,
                "file": stored.file,
                "line": stored.line,
                "sha256": stored.sha256,
            }


def _spans(time: Any, ratio: Any) -> dict[str, float | None]:
    return {
        "time_us": time.estimate if time else None,
        "time_lower_us": time.lower if time else None,
        "time_upper_us": time.upper if time else None,
        "ratio": ratio.estimate if ratio else None,
        "ratio_lower": ratio.lower if ratio else None,
        "ratio_upper": ratio.upper if ratio else None,
    }
