"""The worker: one process per op that measures its tasks, so that a crash, a hang or a lost GPU context stays in it.

Started by `harness.isolate` as `python -m harness.worker IN OUT` with two pipe descriptors; not for people.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from harness import catalog
from harness.measure import environment
from harness.measure.arms import NATIVE_ID
from harness.measure.clock import clock_for
from harness.measure.comparison import Comparison
from harness.measure.controls import read_controls
from harness.measure.global_state import load_configs
from harness.measure.link import DeviceLostError
from harness.pipe_link import PipeLink
from harness.processes import compile_cache_state, die_with_parent
from harness.protocol import (
    Done,
    Finished,
    Go,
    Hello,
    Job,
    Lost,
    Task,
    Unfit,
    to_worker,
)
from harness.store import ArmIdentity

_CONTROL_TRIES = 3


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
    link = PipeLink(int(sys.argv[1]), int(sys.argv[2]), to_worker)
    try:
        serve(link)
    except DeviceLostError as error:
        link.send(Lost(arm=error.arm, error=error.error))
        # The context is broken: its destructors would only raise again.
        os._exit(1)


if __name__ == "__main__":
    main()
