"""A rank that does as the environment says instead of measuring: for the supervisor's side of a group.

`FAKE_RANK_<n>` lists its steps: `begin`, `ended`, `raised`, `lost`, `wait`, `sleep`, or the number it exits with (a
negative one: the signal it dies by). `python -m tests.fake_rank IN OUT RANKS`.
"""

import os
import sys
import time

from pydantic import BaseModel

from harness.protocol import Begin, Ended, Lost

STEPS: dict[str, BaseModel] = {
    "begin": Begin(task="one", arm="evil.a", phase="gate", limit_s=30.0),
    "ended": Ended(error=""),
    "raised": Ended(error="in gate: ValueError: boom"),
    "lost": Lost(arm="evil.a", error="in gate: CUDA error: an illegal memory access was encountered"),
}


def main(out_fd: int) -> None:
    """Take the steps."""
    rank = os.environ["RANK"]
    with os.fdopen(out_fd, "w", encoding="utf-8") as out:
        for step in os.environ[f"FAKE_RANK_{rank}"].split():
            if step in STEPS:
                out.write(STEPS[step].model_dump_json() + "\n")
                out.flush()
            elif step == "sleep":
                time.sleep(600)
            elif step == "wait":
                time.sleep(0.3)
            else:
                print(f"rank {rank} about to end with {step}", flush=True)
                if int(step) < 0:
                    os.kill(os.getpid(), -int(step))
                os._exit(int(step))


if __name__ == "__main__":
    main(int(sys.argv[2]))
