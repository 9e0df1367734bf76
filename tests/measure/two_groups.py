"""One of four processes in two groups of two: native on a draw for a group, beside the sum over that group."""

import json
import os

import torch
import torch.distributed as dist

from candidates.allreduce_rmsnorm.op import OP
from harness.measure.inputs import SeededDraw
from harness.measure.ranks import Seat
from tests.candidates import ranked
from tests.test_ranks import PAIR


def main() -> None:
    """Print how far native lies from the sum over the group, and over the world."""
    ranked.join()
    world_rank = int(os.environ["RANK"])
    groups = [dist.new_group(ranks) for ranks in ((0, 1), (2, 3))]
    mine, rank = divmod(world_rank, 2)
    seeds = (7, 8)

    def drawn(group: int, of_rank: int) -> torch.Tensor:
        seat = Seat(of_rank, 2, groups[mine].group_name)
        draw = SeededDraw(seeds[group], torch.float32, torch.device("cpu"), seat=seat)
        x = OP.inputs(PAIR, draw)["x"]
        assert isinstance(x, torch.Tensor)
        return x

    seat = Seat(rank, 2, groups[mine].group_name)
    args = OP.inputs(PAIR, SeededDraw(seeds[mine], torch.float32, torch.device("cpu"), seat=seat))
    _, h = OP.native(**args)
    of_group = drawn(mine, 0) + drawn(mine, 1) + args["residual"]
    of_world = of_group + drawn(1 - mine, 0) + drawn(1 - mine, 1)
    dist.destroy_process_group()
    print(json.dumps({"group": float((h - of_group).abs().max()), "world": float((h - of_world).abs().max())}))


if __name__ == "__main__":
    main()
