"""The ranks of a case: processes of one host that compute it together, one device each.

All ranks take the same steps. What a rank sees for itself (an exception, a time, a clock's reading) is gathered before
anything is made of it, so that all make the same of it. They talk over gloo, on the world's own process group; the
op's collectives run on another group of the same ranks, so that neither can be taken for the other.

One process alone is a team of one: it agrees with itself, and nothing of torch's distributed package is touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from harness.schema.measurement import EnvironmentRecord, RanksRecord

T = TypeVar("T")

CONTROL_LIMIT_S = 1_800.0
"""Longer than any step may take: the supervisor ends a hang long before, and this ends ranks without a supervisor."""
GROUP_LIMIT_S = 1_200.0
"""The same for the op's collectives; above the longest step's limit."""


@dataclass(frozen=True)
class Seat:
    """One process's place among the ranks of a case."""

    rank: int = 0
    ranks: int = 1
    group: str = ""
    """Name of the c10d process group of these ranks; "" for one rank."""


ONLY_SEAT = Seat()


class PeersLostError(Exception):
    """Another rank has gone, or takes other steps than this one: only new processes help."""


class Team:
    """The ranks of a job as one of them sees it; this one is alone."""

    def __init__(self, seat: Seat = ONLY_SEAT) -> None:
        self.seat = seat

    @property
    def rank(self) -> int:
        """This process's."""
        return self.seat.rank

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.seat.ranks

    def gather(self, value: T, about: str) -> list[T]:
        """Every rank's value, by rank. `about` must be the same on all: ranks that ask other things are apart."""
        return [value]

    def lead(self, value: T, about: str) -> T:
        """Rank 0's value, on all ranks."""
        return self.gather(value, about)[0]

    def most(self, value: float, about: str) -> float:
        """The largest of all ranks' values."""
        return max(self.gather(value, about))

    def told(self, reason: str, about: str) -> str:
        """What any rank has to say, with its name unless all say the same; "" when none does."""
        return first_told(self.gather(reason, about))

    def meet(self) -> None:
        """Wait on the device until all ranks are here: a tiny all-reduce on the op's group, on the current stream."""


ALONE = Team()


def first_told(reasons: Sequence[str]) -> str:
    """The first of the ranks' reasons that is not empty, with its rank unless all give the same one."""
    if len(set(reasons)) == 1:
        return reasons[0]
    rank, reason = next((rank, reason) for rank, reason in enumerate(reasons) if reason)
    return f"rank {rank}: {reason}"


def together(team: Team, environment: EnvironmentRecord) -> RanksRecord | None:
    """Who measures together, as recorded; None for one process."""
    if team.ranks == 1:
        return None
    return RanksRecord(devices=tuple(team.gather(environment.device.uuid, "devices")))


class RankTeam(Team):
    """Several ranks, joined through torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

    def __init__(self) -> None:
        # here, not above: one process alone, and every stand-in for a worker, would wait seconds for it
        import torch
        import torch.distributed as dist

        self._torch = torch
        self._dist = dist
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=CONTROL_LIMIT_S))
        super().__init__(Seat(rank, ranks))
        self._group: Any = None
        self._token = torch.zeros(1)

    def open_group(self, device_type: str) -> None:
        """Make the group of the op's collectives: NCCL on GPUs, where this rank takes the device of its local rank."""
        if device_type == "cuda":
            self._torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self._group = self._dist.new_group(
            list(range(self.ranks)),
            backend="nccl" if device_type == "cuda" else "gloo",
            timeout=timedelta(seconds=GROUP_LIMIT_S),
        )
        self.seat = Seat(self.rank, self.ranks, self._group.group_name)
        self._token = self._torch.zeros(1, device=device_type)
        self.meet()

    def gather(self, value: T, about: str) -> list[T]:
        """See `Team.gather`. Raises PeersLostError when a rank has gone or asks something else."""
        heard: list[Any] = [None] * self.ranks
        try:
            self._dist.all_gather_object(heard, (about, value))
        except RuntimeError as error:
            raise PeersLostError(f"rank {self.rank} heard nothing from the others: {error}") from error
        if len({asked for asked, _ in heard}) > 1:
            raise PeersLostError(f"the ranks are at different steps: {', '.join(asked for asked, _ in heard)}")
        return [said for _, said in heard]

    def meet(self) -> None:
        """See `Team.meet`."""
        self._dist.all_reduce(self._token, group=self._group)
