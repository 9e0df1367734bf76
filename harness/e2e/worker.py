"""The process of a cell as a program: one `CellJob` in, one `ProcessRecord` out.

Started by `harness.e2e.runner` as `python -m harness.e2e.worker IN OUT` with two pipe descriptors, of several ranks as
`... IN OUT RANKS` with torchrun's variables set; not for people.
"""

from __future__ import annotations

from functools import partial
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
from harness.measure.multicast import forbid_multicast
from harness.paths import package_root
from harness.pipe_link import PipeLink
from harness.processes import compile_cache_state
from harness.rank_link import RankLink, work
from harness.sources import MEASURING_E2E, harness_sha256


def serve(link: PipeLink, started_s: float) -> None:
    """Run one process of a cell."""
    cold = compile_cache_state() == "fresh"
    job = link.receive(CellJob).model_copy(update={"cold_compile": cold})
    root = Path(job.root)
    if isinstance(link, RankLink):
        link.team.open_group(job.device_type)
        forbid_multicast()
    entry = catalog.load(job.op, root, job.extra, broken=job.broken)
    if job.device_type == "cuda":
        torch.cuda.init()
    record = environment.environment_record(job.device_type, root, job.op, job.tolerance.model_dump())
    e2e_sha256 = harness_sha256(package_root(), MEASURING_E2E)
    wirings = wiring_sha256(root, job.op)
    peers = tuple(link.team.gather(record.device, "devices")[1:])
    link.send(CellHello(environment=record, peers=peers, e2e_sha256=e2e_sha256, wiring_sha256=wirings))
    link.task = f"{job.workload}/{job.component.id}"
    device = environment.device(job.device_type)
    link.begin("", "controls", 120.0)
    controls = read_controls(clock_for(device, capturable=True), device)
    if reason := link.team.told(controls.reason, "controls that failed"):
        link.send(CellRefused(reason=reason))
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
    work(to_cell, partial(serve, started_s=monotonic()))


if __name__ == "__main__":
    main()
