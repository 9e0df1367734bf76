"""What a measuring process is told by its surroundings."""

import os
import subprocess
import sys

import pytest

from harness import processes
from harness.provision.providers import REPOSITORY as ROOT


def test_rehearsal_is_spared_threads_and_probes_unless_somebody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHINDUCTOR_VEC_ISA_OK", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    spared = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "TRITON_INTERPRET": "1"}
    assert processes._rehearsal_environment() == {"OMP_NUM_THREADS": "1", **spared}
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert processes._rehearsal_environment() == {"OMP_NUM_THREADS": "8", **spared}


@pytest.mark.defence("forks")
def test_what_is_forked_off_ends_at_once_and_programs_run() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from harness.processes import end_forks_at_once\n"
        "end_forks_at_once()\n"
        "child = os.fork()\n"
        "print('here', flush=True)\n"
        "assert child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1\n"
        "subprocess.run([sys.executable, '-c', 'print(2)'], check=True)\n"
    )
    path = os.pathsep.join((str(ROOT / "tests/worker_site"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "here\n2\n"
