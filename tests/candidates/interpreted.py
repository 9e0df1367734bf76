"""Runs our Triton kernels in Triton's interpreter, in a process of its own: the choice is made when they are imported.

What such a rehearsal covers: indexing, masks, merging of statistics, strides of the output, in fp32. What it does not:
rounding to bf16 (the interpreter truncates), PTX instructions, programs that run at the same time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(module: str, interpret: bool) -> dict[str, Any]:
    """What `python -m module` prints as JSON on its last line; the module's failure is the test's."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
