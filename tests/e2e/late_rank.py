"""One of two ranks of test_ranks.py: the clock of a cell, with rank 1 on time and late by turns; prints times in ms."""

import json
import os

import torch
import torch.distributed as dist

from harness.e2e.timing import Sampler
from tests.measure.delayed_rank import Tardy

SAMPLES = 30


def main() -> None:
    """Print the ms of each clock per sample, sorted, on time and late."""
    team = Tardy()
    team.delay_us = float(os.environ["DELAY_US"])
    team.open_group("cpu")
    group, x = team.seat.group, torch.ones(64)
    ops = torch.ops._c10d_functional

    def run() -> None:
        ops.wait_tensor(ops.all_reduce(x, "sum", group))

    sampler = Sampler([run], lambda: None, baseline=0, team=team)
    seen: dict[str, list[float]] = {"time": [], "naive": [], "late time": [], "late naive": [], "late skew": []}
    for sample in range(2 * SAMPLES):
        team.late = bool(sample % 2)
        label = "late " if team.late else ""
        train = sampler.sample(0, 5)
        seen[f"{label}time"].append(train.ns / 1e6)
        seen[f"{label}naive"].append(max(train.durations_ns) / 1e6)
        if team.late:
            seen["late skew"].append(train.skew_ns / 1e6)
    dist.destroy_process_group()
    print(json.dumps({name: sorted(values) for name, values in seen.items()}))


if __name__ == "__main__":
    main()
