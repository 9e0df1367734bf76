"""The one error that is the user's to mend, and the exit codes of the command line."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `harness` tells the shell."""

    DONE = 0
    BAD_INPUT = 2
    """Nothing was run; the message names the place and the fix."""
    NOTHING_SELECTED = 3
    SOME_FAILED = 4
    """Measured, but some arms or rows crashed, timed out or failed; everything else is stored."""
    UNFIT = 5
    """The environment cannot measure: a control failed, the GPU is busy, or the compiler is missing."""
    INTERRUPTED = 130


class UserError(Exception):
    """One clear sentence for the user: what is wrong, where, and the fix. `harness` prints it and exits 2."""


class UnfitError(Exception):
    """Nothing can be measured on this machine now: one sentence says why. `harness` prints it and exits 5."""
