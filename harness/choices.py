"""Options that several verbs of the command line share."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from harness.errors import UserError


class DeviceChoice(StrEnum):
    """Where to measure."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


def device_type_of(choice: DeviceChoice, here: Literal["cuda", "cpu"]) -> Literal["cuda", "cpu"]:
    """The device's type; `here` is what torch sees. Raises UserError for a GPU where there is none."""
    if choice is DeviceChoice.CUDA and here != "cuda":
        raise UserError("--device cuda: torch sees no NVIDIA GPU here; use --device cpu for the rehearsal.")
    return "cpu" if choice is DeviceChoice.CPU else here
