"""The worker: one process per op that measures its tasks, so that a crash, a hang or a lost GPU context stays in it.

Started by `harness.isolate` as `python -m harness.worker IN OUT` with two pipe descriptors; not for people.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TypeVar

import torch

from harness import catalog
from harness.measure import environment
from harness.measure.arms import NATIVE_ID
from harness.measure.clock import clock_for
from harness.measure.comparison import Comparison
from harness.measure.controls import read_controls
from harness.measure.global_state import load_configs
from harness.measure.link import DeviceLostError
from harness.processes import die_with_parent
from harness.protocol import (
    Begin,
    BlockQuery,
    Blocks,
    Done,
    Finished,
    FromWorker,
    Go,
    Hello,
    Job,
    Lost,
    Reply,
    Task,
    TelemetryQuery,
    Unfit,
    to_worker,
)
from harness.schema.measurement import TelemetryRecord
from harness.store import ArmIdentity

_CONTROL_TRIES = 3

Expected = TypeVar("Expected", Job, Go, Reply)


class PipeLink:
    """`harness.measure.comparison.Link` over the pipes."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self._in = os.fdopen(in_fd, "r", encoding="utf-8")
        self._out = os.fdopen(out_fd, "w", encoding="utf-8")
        self.task = ""

    def send(self, message: FromWorker) -> None:
        """Write one message."""
        self._out.write(message.model_dump_json() + "\n")
        self._out.flush()

    def receive(self, expected: type[Expected]) -> Expected:
        """Read one message of the expected kind; exits when the supervisor has gone."""
        line = self._in.readline()
        if not line:
            sys.exit(0)
        message = to_worker.validate_json(line)
        assert isinstance(message, expected), f"expected {expected.__name__}, got {message.kind}"
        return message

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """See `Link.begin`."""
        self.send(Begin(task=self.task, arm=arm, phase=phase, limit_s=limit_s))

    def block_void(self, start_s: float, stop_s: float) -> str:
        """See `Link.block_void`."""
        self.send(BlockQuery(start_s=start_s, stop_s=stop_s))
        return self.receive(Reply).void

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """See `Link.telemetry`."""
        self.send(TelemetryQuery(start_s=start_s, stop_s=stop_s, void=void))
        return self.receive(Reply).telemetry or TelemetryRecord(available=False)

    def blocks(self, done: int, most: int) -> None:
        """See `Link.blocks`."""
        self.send(Blocks(done=done, most=most))


def compile_cache_state() -> str:
    """`fresh` when Inductor's and Triton's cache folders are empty or absent, else `kept`."""
    folders = [Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR") if name in os.environ]
    return "kept" if any(folder.is_dir() and any(folder.iterdir()) for folder in folders) else "fresh"


def identities(task: Task, entry: catalog.Entry) -> dict[str, ArmIdentity]:
    """The candidates that concern a task, eager native among them."""
    found = {NATIVE_ID: ArmIdentity(None, "")}
    for candidate in entry.candidates:
        if candidate.context is None or candidate.context == task.context:
            found[candidate.id] = ArmIdentity(candidate.provider.version(), entry.sources[candidate.id])
    return found


def serve(link: PipeLink) -> None:
    """Run one job."""
    cache = compile_cache_state()
    job = link.receive(Job)
    root = Path(job.root)
    load_configs()
    entry = catalog.load(job.op, root, job.extra, broken=job.broken)
    if job.device_type == "cuda":
        torch.cuda.init()
    record = environment.environment_record(job.device_type, root, job.op, job.tolerance.model_dump())
    link.send(
        Hello(
            environment=record,
            identities=tuple(identities(task, entry) for task in job.tasks),
            problems=entry.problems,
        )
    )
    tasks = link.receive(Go).tasks
    if not tasks:
        link.send(Finished())
        return
    if any(task.build_s for task in tasks):
        cache = "built ahead"
    device = environment.device(job.device_type)
    link.begin("", "controls", 120.0)
    for _ in range(_CONTROL_TRIES):
        controls = read_controls(clock_for(device, capturable=True), device)
        if controls.passed:
            break
    else:
        link.send(Unfit(reason=controls.reason))
        return
    comparison = Comparison(
        entry.op,
        list(entry.candidates),
        entry.sources,
        job.tolerance,
        device,
        record,
        controls,
        cache,
        job.settings,
        link,
        entry.refused,
    )
    for task in tasks:
        link.task = task.name
        link.send(Done(measurement=comparison.run(task)))
        if job.device_type == "cuda":
            torch.cuda.empty_cache()
    link.send(Finished())


def main() -> None:
    """Entry point."""
    die_with_parent()
    link = PipeLink(int(sys.argv[1]), int(sys.argv[2]))
    try:
        serve(link)
    except DeviceLostError as error:
        link.send(Lost(arm=error.arm, error=error.error))
        # The context is broken: its destructors would only raise again.
        os._exit(1)


if __name__ == "__main__":
    main()
