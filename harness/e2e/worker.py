"""The process of a cell as a program: one `CellJob` in, one `ProcessRecord` out.

Started by `harness.e2e.runner` as `python -m harness.e2e.worker IN OUT` with two pipe descriptors; not for people.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic

import torch

from harness import catalog, sources
from harness.e2e.process import CellProcess, RefusedError
from harness.e2e.protocol import CellDone, CellHello, CellJob, CellRefused, FromCell, to_cell
from harness.e2e.wirings import wiring_for
from harness.measure import environment
from harness.measure.clock import clock_for
from harness.measure.controls import read_controls
from harness.paths import package_root
from harness.processes import die_with_parent
from harness.protocol import Begin, BlockQuery, Blocks, Reply, TelemetryQuery
from harness.schema.measurement import TelemetryRecord
from harness.worker import compile_cache_state


class CellLink:
    """`harness.measure.link.Link` over the pipes."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in = os.fdopen(in_fd, "r", encoding="utf-8")
        self._out = os.fdopen(out_fd, "w", encoding="utf-8")
        self.task = ""

    def send(self, message: FromCell) -> None:
        """Write one message."""
        self._out.write(message.model_dump_json() + "\n")
        self._out.flush()

    def job(self) -> CellJob:
        """The job; exits when the runner has gone."""
        message = self._receive()
        assert isinstance(message, CellJob), f"expected the job, got {message.kind}"
        return message

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """See `Link.begin`."""
        self.send(Begin(task=self.task, arm=arm, phase=phase, limit_s=limit_s))

    def block_void(self, start_s: float, stop_s: float) -> str:
        """See `Link.block_void`."""
        self.send(BlockQuery(start_s=start_s, stop_s=stop_s))
        return self._reply().void

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """See `Link.telemetry`."""
        self.send(TelemetryQuery(start_s=start_s, stop_s=stop_s, void=void))
        return self._reply().telemetry or TelemetryRecord(available=False)

    def blocks(self, done: int, most: int) -> None:
        """See `Link.blocks`."""
        self.send(Blocks(done=done, most=most))

    def _reply(self) -> Reply:
        message = self._receive()
        assert isinstance(message, Reply), f"expected a reply, got {message.kind}"
        return message

    def _receive(self) -> CellJob | Reply:
        line = self._in.readline()
        if not line:
            sys.exit(0)
        return to_cell.validate_json(line)


def serve(link: CellLink, started_s: float) -> None:
    """Run one process of a cell."""
    cold = compile_cache_state() == "fresh"
    job = link.job().model_copy(update={"cold_compile": cold})
    root = Path(job.root)
    entry = catalog.load(job.op, root, job.extra, broken=job.broken)
    if job.device_type == "cuda":
        torch.cuda.init()
    record = environment.environment_record(job.device_type, root, job.op, job.tolerance.model_dump())
    e2e_sha256 = sources.e2e_sha256(package_root(), root, job.op)
    link.send(CellHello(environment=record, e2e_sha256=e2e_sha256))
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
    serve(CellLink(int(sys.argv[1]), int(sys.argv[2])), started_s)


if __name__ == "__main__":
    main()
