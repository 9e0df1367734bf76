"""Runs a module as the ranks of a group, one process each, over gloo; each prints what it saw as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LIMIT_S = 240


def run(module: str, ranks: int, *, interpret: bool = False, arguments: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What `python -m module` prints on its last line, by rank. One rank's failure is the test's; none is left over."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1" if interpret else "0",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(ranks),
            "RENDEZVOUS": f"{folder}/store",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            said = [process.communicate(timeout=_LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def join(backend: str = "gloo") -> tuple[int, int, str]:
    """In such a process: joins the others; its rank, their number, and the name of a group that is not the world."""
    from datetime import timedelta

    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=60)
    dist.init_process_group(
        backend, init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=ranks, timeout=limit
    )
    group = dist.new_group(range(ranks), timeout=limit)
    return rank, ranks, group.group_name
