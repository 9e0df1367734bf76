"""Run by test_allreduce_rmsnorm.py: compiles the kernels of the manifest's shapes for sm_90."""

import torch

from candidates.allreduce_rmsnorm import launch
from candidates.allreduce_rmsnorm.workspace import PeerMemory, Workspace
from candidates.rmsnorm.rounding import BEFORE_WEIGHT, ONCE
from tests.candidates.hopper import print_facts


def _call(rows: int, width: int, *, two_shot: bool, ranks: int = 2, rounding: str = BEFORE_WEIGHT) -> object:
    x = torch.empty((rows, width), dtype=torch.bfloat16, device="meta")
    weight = torch.empty(width, dtype=torch.bfloat16, device="meta")
    addresses = torch.empty(ranks, dtype=torch.int64, device="meta")
    counters = torch.empty(2, dtype=torch.int32, device="meta")
    space = Workspace(
        0, ranks, launch.most_programs(x.device), 1 << 14, 1 << 21, addresses, counters, PeerMemory((), None)
    )
    launch._space = lambda x, group, two_shot: space
    return launch.fused(x, weight, 1e-6, "group", x, rounding, two_shot=two_shot)


if __name__ == "__main__":
    launch._sm_count = lambda device: 132
    print_facts(
        {
            f"{'two' if two_shot else 'one'} shot {label}": lambda kwargs=kwargs, two_shot=two_shot: _call(
                **kwargs, two_shot=two_shot
            )
            for two_shot in (False, True)
            for label, kwargs in {
                "1x1024": {"rows": 1, "width": 1024},
                "8192x2048": {"rows": 8192, "width": 2048},
                "8192x8192 once, 8 ranks": {"rows": 8192, "width": 8192, "rounding": ONCE, "ranks": 8},
            }.items()
        },
        meets=True,
    )
