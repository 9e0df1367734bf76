"""The measuring process's end of the line: `harness.measure.link.Link` over two pipes, one JSON message a line."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from harness.measure.ranks import ALONE, Team
from harness.protocol import Begin, BlockQuery, Blocks, Message, Reply, TelemetryQuery
from harness.schema.measurement import TelemetryRecord

Expected = TypeVar("Expected", bound=Message)


class PipeLink:
    """Speaks to the supervisor whose pipes these are; `messages` reads what it sends."""

    def __init__(self, in_fd: int, out_fd: int, messages: TypeAdapter[Any]) -> None:
        self._in = os.fdopen(in_fd, "r", encoding="utf-8")
        self._out = os.fdopen(out_fd, "w", encoding="utf-8")
        self._messages = messages
        self.task = ""
        self.team: Team = ALONE

    def send(self, message: BaseModel) -> None:
        """Write one message."""
        self._out.write(message.model_dump_json() + "\n")
        self._out.flush()

    def receive(self, expected: type[Expected]) -> Expected:
        """Read one message of the expected kind; exits when the supervisor has gone."""
        line = self._in.readline()
        if not line:
            sys.exit(0)
        message = self._messages.validate_json(line)
        assert isinstance(message, expected), f"expected {expected.__name__}, got {type(message).__name__}"
        return message

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """See `Link.begin`."""
        self.send(Begin(task=self.task, arm=arm, phase=phase, limit_s=limit_s))

    def ended(self, error: str) -> None:
        """See `Link.ended`: the supervisor of one process hears of it with the next step."""

    def block_void(self, start_s: float, stop_s: float) -> str:
        """See `Link.block_void`."""
        self.send(BlockQuery(start_s=start_s, stop_s=stop_s))
        return self.receive(Reply).void

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """See `Link.telemetry`."""
        self.send(TelemetryQuery(start_s=start_s, stop_s=stop_s, void=void))
        return self.receive(Reply).telemetry or TelemetryRecord(available=False)

    def blocks(self, done: int, most: int) -> None:
        """See `Link.blocks`."""
        self.send(Blocks(done=done, most=most))
