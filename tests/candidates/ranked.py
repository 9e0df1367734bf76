"""Runs a module as the ranks of a group, one process each; each prints what it saw as JSON. NVLink multicast is off."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def run(module: str, ranks: int, *, interpret: bool = False, limit_s: float = 240) -> list[dict[str, Any]]:
    """What `python -m module` prints on its last line, by rank. One rank's failure is the test's; none is left over."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1" if interpret else "0",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(ranks),
            "RENDEZVOUS": f"{folder}/store",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "NCCL_NVLS_ENABLE": "0",
            "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
            "NVSHMEM_DISABLE_NVLS": "1",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            said = [process.communicate(timeout=limit_s) for process in processes]
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

    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # NCCL: a rank that compiles a kernel for minutes is waited for
    limit, device = timedelta(seconds=60), None
    if backend == "nccl":
        limit, device = timedelta(seconds=600), torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{os.environ['RENDEZVOUS']}",
        rank=rank,
        world_size=ranks,
        timeout=limit,
        device_id=device,
    )
    group = dist.new_group(range(ranks), timeout=limit)
    return rank, ranks, group.group_name
