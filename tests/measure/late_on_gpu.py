"""One of two ranks on GPUs: an all-reduce in a CUDA graph, rank 1 on time or 250 µs late, as each clock sees it."""

import json
import os
import statistics

import torch
import torch.distributed as dist

from harness.measure.arms import Arm
from harness.measure.rank_clock import MIN_TRAIN_US, DeviceTimer, RankGraphClock
from harness.measure.ranks import RankTeam
from harness.schema.vocabulary import Contract, Kind, Role

SLEEP_CYCLES = 500_000
"""About 250 µs at 2 GHz, longer at lower clocks."""
SAMPLES = 20


class Late(RankGraphClock):
    """Rank 1 sleeps on the device between the meeting and its entry."""

    def head(self) -> None:
        """As ever, but late."""
        self.team.meet()
        if self.team.rank == 1:
            torch.cuda._sleep(SLEEP_CYCLES)
        self.timer.stamp(0)


def main() -> None:
    """Print the median µs of a train, by the harness's clock and by the longest rank's, and what the clock is worth."""
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    team = RankTeam()
    team.open_group("cuda")
    group = team.seat.group
    ops = torch.ops._c10d_functional

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (ops.wait_tensor(ops.all_reduce(x, "sum", group)),)

    arm = Arm("reduced", Kind.NATIVE, Role.CANDIDATE, Contract.TOLERANCE, reduced, "function")
    args = {"x": torch.ones(64, 2048, device="cuda", dtype=torch.bfloat16)}
    timer = DeviceTimer()
    plain = RankGraphClock(team, timer)
    call_us = team.most(plain.estimate_us(lambda: arm.outputs(args)), "estimate")
    launches = int(MIN_TRAIN_US / call_us) + 20
    seen: dict[str, float] = {}
    for label, clock in (("", plain), ("late ", Late(team, timer))):
        timed = clock.ready(arm, [args], launches)
        times, naive, skews, doubts = [], [], [], []
        for _ in range(SAMPLES):
            times.append(timed.sample_us() * launches)
            naive.append(max(timed.trains[0].durations_ns) / 1e3)
            skews.append(timed.trains[0].skew_ns / 1e3)
            doubts.append(timed.trains[0].uncertainty_ns / 1e3)
        for name, values in (("time", times), ("naive", naive), ("skew", skews), ("doubt", doubts)):
            seen[f"{label}{name}"] = statistics.median(values)
    assert torch.equal(reduced(args["x"])[0], torch.full_like(args["x"], 2.0))
    dist.destroy_process_group()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
