"""The worker's line to its supervisor, and how steps that touch an arm are announced, limited and blamed."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

import torch

from harness.measure.armstate import ArmState
from harness.measure.global_state import watched
from harness.measure.multicast import MulticastRefusedError
from harness.measure.ranks import PeersLostError, Team, first_told
from harness.schema.measurement import TelemetryRecord
from harness.schema.vocabulary import ArmStatus


class Phase(Enum):
    """Steps that touch one arm: name and time limit in seconds."""

    BUILD = ("build", 600.0)
    PROBE = ("contract", 300.0)
    GATE = ("gate", 180.0)
    PROFILE = ("profile", 120.0)
    CAPTURE = ("capture", 180.0)
    SAMPLE = ("timing", 300.0)
    AFTER = ("gate after", 180.0)

    def __init__(self, label: str, limit_s: float) -> None:
        self.label = label
        self.limit_s = limit_s


class Link(Protocol):
    """The worker's line to the process that supervises it, and to the other ranks of its job."""

    team: Team

    def begin(self, arm: str, phase: str, limit_s: float) -> None:
        """Say which arm the next step touches and how long it may take."""

    def ended(self, error: str) -> None:
        """Say that this rank is through that step, and what it raised there, or ""."""

    def block_void(self, start_s: float, stop_s: float) -> str:
        """Ask the watcher whether a block counts."""
        ...

    def telemetry(self, start_s: float, stop_s: float, void: int) -> TelemetryRecord:
        """The watcher's summary of a span."""
        ...

    def blocks(self, done: int, most: int) -> None:
        """Tell progress."""


class DeviceLostError(Exception):
    """Only a new process helps: an arm's error took the CUDA context, or left some ranks inside a collective.

    Carries the arm and the error.
    """

    def __init__(self, arm: str, error: str) -> None:
        super().__init__(f"{arm}: {error}")
        self.arm = arm
        self.error = error


def synchronize(device_type: str) -> None:
    """Wait for the device; raises the sticky error of an earlier launch."""
    if device_type == "cuda":
        torch.cuda.synchronize()


def check_device(device_type: str) -> None:
    """Raise what the device still has to say: a sticky error, or one that a launch left behind and nobody read."""
    if device_type == "cuda":
        torch.zeros(1, device=device_type)
        torch.cuda.synchronize()


def recovered(device_type: str) -> str:
    """After an error: why the device is unusable, or "". One leftover error is read away; a sticky one stays."""
    try:
        check_device(device_type)
    except Exception:
        try:
            check_device(device_type)
        except Exception as sticky:
            return first_line(sticky)
    return ""


class Standing(Protocol):
    """An arm of either stage, and whether it is still in the comparison."""

    status: ArmStatus
    reason: str

    @property
    def id(self) -> str:
        """The arm's."""
        ...

    def fail(self, status: ArmStatus, reason: str) -> None:
        """Take it out; the first reason sticks."""


@contextmanager
def touching(link: Link, state: ArmState, phase: Phase, device_type: str) -> Iterator[None]:
    """Announce the arm and do as `blamed`.

    What a candidate changes of the process's settings is put back, and takes the candidate out.
    """
    link.begin(state.arm.id, phase.label, phase.limit_s)
    with blamed(link, state, phase.label, device_type):
        with watched() as settings:
            yield
            check_device(device_type)
        if settings.changed and state.arm.candidate is not None:
            state.fail(ArmStatus.GATE_FAILED, f"in {phase.label}: {settings.changed}")


@contextmanager
def blamed(link: Link, state: Standing, phase: str, device_type: str) -> Iterator[None]:
    """Turn exceptions of a step into its arm's status, or into DeviceLostError when the context is gone.

    What takes the arm out on one rank takes it out on all. Where only some ranks raised, the others may have heard half
    of a collective, and what they hear next would be the other half: DeviceLostError.
    """
    raised = ""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raised = f"in {phase}: {first_line(error)}"
        state.fail(ArmStatus.OUT_OF_MEMORY, raised)
        torch.cuda.empty_cache()
    except MulticastRefusedError as error:
        raised = f"in {phase}: {error}"
        state.fail(ArmStatus.GATE_FAILED, raised)
    except PeersLostError:
        raise  # no arm's fault
    except Exception as error:
        traceback.print_exc()  # to the worker's log
        if sticky := recovered(device_type):
            raise DeviceLostError(state.id, f"in {phase}: {sticky}") from error
        raised = f"in {phase}: {type(error).__name__}: {first_line(error)}"
        state.fail(ArmStatus.CRASHED, raised)
    link.ended(raised)
    alike = link.team.gather(raised, f"{phase} of {state.id}: raised")
    if any(alike) and not all(alike):
        raise DeviceLostError(state.id, first_told(alike))
    agree(link.team, state)


def agree(team: Team, state: Standing) -> None:
    """Take the arm out on all ranks with the reason of the first that took it out."""
    seen = team.gather((state.status, state.reason), f"status of {state.id}")
    if out := next((status for status, _ in seen if status is not ArmStatus.OK), None):
        state.status, state.reason = out, first_told([reason for _, reason in seen])


def first_line(error: BaseException) -> str:
    """The first line of an error's text, cut to a length that fits a table's footnote."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
