"""The process of a cell as a program: one `CellJob` in, one `ProcessRecord` out.

Started by `harness.e2e.runner` as `python -m harness.e2e.worker IN OUT` with two pipe descriptors; not for people.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

import torch

from harness import catalog
from harness.e2e.process import CellProcess
from harness.e2e.protocol import CellDone, CellHello, CellJob, CellRefused, to_cell
from harness.e2e.wirings import wiring_for
from harness.e2e.workbench import RefusedError
from harness.imported import wiring_sha256
from harness.measure import environment
from harness.measure.clock import clock_for
from harness.measure.controls import read_controls
from harness.paths import package_root
from harness.pipe_link import PipeLink
from harness.processes import compile_cache_state, die_with_parent, end_forks_at_once
from harness.sources import MEASURING_E2E, harness_sha256


def serve(link: PipeLink, started_s: float) -> None:
    """Run one process of a cell."""
    cold = compile_cache_state() == "fresh"
    job = link.receive(CellJob).model_copy(update={"cold_compile": cold})
    root = Path(job.root)
    entry = catalog.load(job.op, root, job.extra, broken=job.broken)
    if job.device_type == "cuda":
        torch.cuda.init()
    record = environment.environment_record(job.device_type, root, job.op, job.tolerance.model_dump())
    e2e_sha256 = harness_sha256(package_root(), MEASURING_E2E)
    wirings = wiring_sha256(root, job.op)
    link.send(CellHello(environment=record, e2e_sha256=e2e_sha256, wiring_sha256=wirings))
    link.task = f"{job.workload}/{job.component.id}"
    device = environment.device(job.device_type)
    link.begin("", "controls", 120.0)
    controls = read_controls(clock_for(device, capturable=True), device)
    if not controls.passed:
        link.send(CellRefused(reason=controls.reason))
        return
    process = CellProcess(
        job=job,
        op=entry.op,
        wiring=wiring_for(job.op, job.family, job.context),
        candidates=[candidate for candidate in entry.candidates if candidate.id in job.candidates],
        sources=entry.sources,
        device=device,
        environment=record,
        e2e_sha256=e2e_sha256,
        wiring_sha256=wirings,
        copy_bytes_per_us=controls.copy_bytes_per_us,
        link=link,
        started_s=started_s,
    )
    try:
        link.send(CellDone(record=process.measure()))
    except RefusedError as error:
        link.send(CellRefused(reason=str(error)))


def main() -> None:
    """Entry point."""
    started_s = monotonic()
    die_with_parent()
    end_forks_at_once()
    serve(PipeLink(int(sys.argv[1]), int(sys.argv[2]), to_cell), started_s)


if __name__ == "__main__":
    main()
