"""One of two ranks: times an all-reduce with rank 1 on time and late by turns, and prints what each clock says."""

import json
import os
from time import sleep

import torch
import torch.distributed as dist

from harness.measure.arms import Arm
from harness.measure.rank_clock import RankWallClock
from harness.measure.ranks import RankTeam
from harness.schema.vocabulary import Contract, Kind, Role

SAMPLES = 30
LAUNCHES = 5


class Tardy(RankTeam):
    """Rank 1 dawdles between the meeting and its entry when told to."""

    late = False
    delay_us = 0.0

    def meet(self) -> None:
        """As ever, then late."""
        super().meet()
        if self.late and self.rank == 1:
            sleep(self.delay_us / 1e6)


def main() -> None:
    """Print the µs of each clock per train, sorted, on time and late."""
    team = Tardy()
    team.delay_us = float(os.environ["DELAY_US"])
    team.open_group("cpu")
    group = team.seat.group
    ops = torch.ops._c10d_functional

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (ops.wait_tensor(ops.all_reduce(x, "sum", group)),)

    arm = Arm("reduced", Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, reduced, "function")
    timed = RankWallClock(team).ready(arm, [{"x": torch.ones(64)}], LAUNCHES)
    seen: dict[str, list[float]] = {"time": [], "naive": [], "late time": [], "late naive": []}
    for sample in range(2 * SAMPLES):
        team.late = bool(sample % 2)
        label = "late " if team.late else ""
        seen[f"{label}time"].append(timed.sample_us() * LAUNCHES)
        seen[f"{label}naive"].append(max(timed.trains[0].durations_ns) / 1e3)
    assert torch.equal(reduced(torch.ones(64))[0], torch.full((64,), 2.0))
    dist.destroy_process_group()
    print(json.dumps({name: sorted(values) for name, values in seen.items()}))


if __name__ == "__main__":
    main()
