"""The worker: one process per op that measures its tasks, so that a crash, a hang or a lost GPU context stays in it.

Started by `harness.isolate` as `python -m harness.worker IN OUT` with two pipe descriptors; not for people. A job of
several ranks has such a process for each, started as `... IN OUT RANKS` with torchrun's variables set.
"""

from __future__ import annotations

from pathlib import Path

import torch

from harness import catalog
from harness.measure import environment
from harness.measure.arms import NATIVE_ID
from harness.measure.clock import clock_for
from harness.measure.comparison import Comparison
from harness.measure.controls import read_controls
from harness.measure.global_state import load_configs
from harness.measure.multicast import forbid_multicast
from harness.op import Device
from harness.pipe_link import PipeLink
from harness.processes import compile_cache_state
from harness.protocol import (
    Done,
    Finished,
    Go,
    Hello,
    Job,
    Task,
    Unfit,
    to_worker,
)
from harness.rank_link import RankLink, work
from harness.schema.measurement import ControlsRecord
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
    if isinstance(link, RankLink):
        link.team.open_group(job.device_type)
        forbid_multicast()
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
            peers=tuple(link.team.gather(record.device, "devices")[1:]),
        )
    )
    tasks = link.receive(Go).tasks
    if not tasks:
        link.send(Finished())
        return
    if any(task.build_s for task in tasks):
        cache = "built ahead"
    device = environment.device(job.device_type)
    controls = _controls(link, device)
    if not controls.passed:
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


def _controls(link: PipeLink, device: Device) -> ControlsRecord:
    """Rank 0's controls, passed when those of every rank did."""
    link.begin("", "controls", 120.0)
    for _ in range(_CONTROL_TRIES):
        mine = read_controls(clock_for(device, capturable=True), device)
        reason = link.team.told(mine.reason, "controls that failed")
        controls = link.team.lead(mine, "controls").model_copy(update={"passed": not reason, "reason": reason})
        if controls.passed:
            break
    return controls


def main() -> None:
    """Entry point."""
    work(to_worker, serve)


if __name__ == "__main__":
    main()
