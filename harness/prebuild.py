"""Fills the compile caches before anything is timed: several builders at once, one process each.

A cold sweep spends nine tenths of its time compiling, one arm after another, while the GPU waits. Builders make the
first call of every arm of the coming tasks and report how long it took; they must all have ended before the worker
that measures starts, since a second process on the GPU voids blocks. What fails here fails again there, and is blamed
there.

Only compiling is done ahead. What Inductor's kernels were tuned to while other builders kept the GPU busy is thrown
away, and the worker tunes them alone: kept, it made one H200 baseline run at half its speed (its A/A twin told).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from pydantic import TypeAdapter

from harness.processes import die_with_parent
from harness.protocol import Job, Task

LIMIT_S = 240.0
MIN_TASKS = 4
MAX_BUILDERS = 8
MAX_NUMEL = 1 << 29
"""Larger cases are built by the worker itself: several at once would not fit on the device."""

BuildTimes = dict[str, dict[str, float]]
"""Task name to arm id to seconds of its first call."""
_times: TypeAdapter[BuildTimes] = TypeAdapter(BuildTimes)


def build_ahead(job: Job, tasks: Sequence[Task], environment: Mapping[str, str], log: Path) -> list[Task]:
    """Run the builders; the tasks with their build times filled in, unchanged when there is nothing to gain."""
    small = [task for task in tasks if task.case.numel <= MAX_NUMEL]
    builders = min(MAX_BUILDERS, (os.cpu_count() or 1) // 2, len(small))
    # Ranks build together, or none would get past its first collective.
    if job.device_type != "cuda" or job.ranks > 1 or len(small) < MIN_TASKS or builders < 2:
        return list(tasks)
    processes = []
    with log.open("wb") as output:
        for index in range(builders):
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.prebuild", str(index / builders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**environment, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
            )
            assert process.stdin is not None
            process.stdin.write(
                job.model_copy(update={"tasks": tuple(small[index::builders])}).model_dump_json().encode()
            )
            process.stdin.close()
            processes.append(process)
        times = _collect(processes)
    for tuned in Path(environment["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        tuned.unlink()
    return [task.model_copy(update={"build_s": times.get(task.name, {})}) for task in tasks]


def _collect(processes: Sequence[subprocess.Popen[bytes]]) -> BuildTimes:
    """What the builders say before the limit; none is left running, also after Ctrl-C."""
    deadline = monotonic() + LIMIT_S
    times: BuildTimes = {}
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline - monotonic(), 0.1))
    finally:
        for process in processes:
            process.kill()
            assert process.stdout is not None
            with process.stdout as said:
                for line in said.read().splitlines():
                    if line.startswith(b"{"):
                        times |= _times.validate_json(line)
            process.wait()
    return times


def _build(job: Job, turn: float) -> None:
    """Builder: the first call of every arm of every task; one JSON line per task on standard output.

    It begins with the arm at share `turn` of a task's arms. Packages that compile CUDA let one process build a kernel:
    builders that all began with the first arm would wait for each in turn, 45 s for flashinfer's, then 13 for sglang's.
    """
    import torch

    from harness import catalog
    from harness.measure import environment
    from harness.measure.arms import arms_of
    from harness.measure.gate import Gate
    from harness.measure.global_state import load_configs, watched
    from harness.measure.link import synchronize

    die_with_parent()
    load_configs()
    entry = catalog.load(job.op, Path(job.root), job.extra, broken=job.broken)
    device = environment.device(job.device_type)
    for task in job.tasks:
        context = entry.op.context(task.context) if task.context else None
        gate = Gate(entry.op, task.case, context, job.tolerance, torch.device(device.type), job.settings.seed)
        arms, _ = arms_of(entry.op, entry.candidates, task, device)
        first = int(turn * len(arms))
        seconds: dict[str, float] = {}
        with torch.no_grad():
            for arm in (*arms[first:], *arms[:first]):
                # What an arm changes of the process is put back; the worker finds it again, and says so.
                with contextlib.suppress(Exception), watched():
                    args = arm.prepared(gate.draw())
                    start = monotonic()
                    arm.outputs(args)
                    synchronize(device.type)
                    seconds[arm.id] = monotonic() - start
        torch.cuda.empty_cache()  # the next task's shapes are others
        print(_times.dump_json({task.name: seconds}).decode(), flush=True)


if __name__ == "__main__":
    _build(Job.model_validate_json(sys.stdin.read()), float(sys.argv[1]))
