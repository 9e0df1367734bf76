"""A rank's end of the line: rank 0 speaks with the supervisor and passes on what it hears; all say where they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

from harness.measure.link import DeviceLostError
from harness.measure.ranks import PeersLostError, RankTeam
from harness.pipe_link import Expected, PipeLink
from harness.processes import die_with_parent, end_forks_at_once
from harness.protocol import Begin, Ended, Lost
from harness.rank_group import PEERS_LOST_CODE


class RankLink(PipeLink):
    """`PipeLink` of one of several ranks; each has pipes of its own to `harness.rank_group.WorkerGroup`."""

    def __init__(self, in_fd: int, out_fd: int, messages: TypeAdapter[Any], team: RankTeam) -> None:
        super().__init__(in_fd, out_fd, messages)
        self.team: RankTeam = team

    def send(self, message: BaseModel) -> None:
        """Write one message; what all ranks would say alike, rank 0 says."""
        if self.team.rank == 0 or isinstance(message, Begin | Ended | Lost):
            super().send(message)

    def receive(self, expected: type[Expected]) -> Expected:
        """What rank 0 reads, on all ranks."""
        message = super().receive(expected) if self.team.rank == 0 else None
        return cast(Expected, self.team.lead(message, f"wait for {expected.__name__}"))

    def wait_for_end(self) -> None:
        """Return when the supervisor has gone; it ends all ranks together, and one that ended by itself died."""
        self._in.read()

    def ended(self, error: str) -> None:
        """See `Link.ended`."""
        self.send(Ended(error=error))


def work(messages: TypeAdapter[Any], serve: Callable[[PipeLink], None]) -> None:
    """What a measuring process does from its start to its end: `serve` one job, as its own arguments and torchrun's
    variables say alone or as one of several ranks."""
    die_with_parent()
    end_forks_at_once()
    in_fd, out_fd, *ranks = map(int, sys.argv[1:])
    link = RankLink(in_fd, out_fd, messages, RankTeam()) if ranks else PipeLink(in_fd, out_fd, messages)
    try:
        serve(link)
        if isinstance(link, RankLink):
            link.wait_for_end()
    except PeersLostError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(PEERS_LOST_CODE)
    except DeviceLostError as error:
        link.send(Lost(arm=error.arm, error=error.error))
        # The context is broken: its destructors would only raise again.
        os._exit(1)
