"""One rank of test_allreduce_faults.py: the whole gate on faulty candidates; prints each one's status and reason."""

import json
import os

import pytest
import torch
import torch.distributed as dist

from candidates.allreduce_rmsnorm.op import OP
from harness.measure.ranks import RankTeam
from harness.op import Candidate, Device
from harness.protocol import Task
from harness.schema.case import Case, Confidence, Dtype
from tests import rig
from tests.evil import allreduce_faults

DIMS = {"T": 5, "D": 96}
CASE = Case(
    id="tiny",
    model="toy",
    dims=DIMS,
    params={"eps": 1e-6, "rounding": "once", "residual": True},
    dtype=Dtype.BF16,
    calls=1,
    step="a step of a toy",
    ranks=2,
    source="made up for a test",
    confidence=Confidence.QUOTED,
    rehearsal=DIMS,
)


def main() -> None:
    """The faulty candidates are called CUDA ones, so that nothing is granted to an interpreter."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        rig.quick(patch)
        link = rig.StubLink()
        link.team = team = RankTeam()
        team.open_group("cpu")
        found = [value for value in vars(allreduce_faults).values() if isinstance(value, Candidate)]
        patch.setattr("harness.measure.arms._refusal", lambda candidate, case, device: None)
        comparison = rig.comparison(found, op=OP, device=Device("cpu", "test", (0, 0), 2, 1 << 14, 1 << 32), link=link)
        measurement = comparison.run(Task(case=CASE, context=None))
        print(json.dumps({arm.id: [arm.status, arm.reason] for arm in measurement.arms}))
        dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ["RANK"]
    main()
