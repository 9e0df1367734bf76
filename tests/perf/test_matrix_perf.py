"""`harness matrix` over a large store: the whole command, as a person waits for it.

The first run after a clone reads every line once (`cold_s` beside the figures); every later one asks the index.
100,000 lines are 2.6 GB: `pytest tests/perf/test_matrix_perf.py -m slow` makes them in a temporary folder.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.paths import package_root
from tests.perf.synthetic import build


def matrix(root: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "matrix"],
        cwd=root,
        env={"PYTHONPATH": str(package_root()), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("lines", [1_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_the_matrix_of_a_large_store(tmp_path: Path, benchmark: Any, lines: int) -> None:
    build(tmp_path / "root", lines)
    time.sleep(2.1)  # a file written just now is read again
    start = time.perf_counter()
    first = matrix(tmp_path / "root")
    benchmark.extra_info["cold_s"] = round(time.perf_counter() - start, 2)
    benchmark.extra_info["lines"] = lines
    again = benchmark.pedantic(matrix, args=(tmp_path / "root",), rounds=2, iterations=1)
    assert again == first
    assert "Made-up GPU" in first
