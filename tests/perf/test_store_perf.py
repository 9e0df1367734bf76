"""The store is no bottleneck: reading all of an op's evidence and resuming stay far below one measurement's time."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.store import Store, resume_key_of
from tests.builders import Arm, measurement

LINES = 60
"""About what one op leaves on one card: 20 cases, three runs."""


def best_s(run: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def test_reading_and_resuming_are_cheap(tmp_path: Path) -> None:
    arms = {f"inhouse.k{n}": Arm() for n in range(6)}
    lines = [measurement(arms, seed=seed, blocks=100) for seed in range(LINES)]
    store = Store(tmp_path)
    start = time.perf_counter()
    for line in lines:
        file = store.append(line)
    append_s = (time.perf_counter() - start) / LINES
    size_mib = file.stat().st_size / 2**20
    load_s = best_s(lambda: Store(tmp_path).load())
    find_s = best_s(lambda: store.find(resume_key_of(lines[-1])))
    print(f"{size_mib:.1f} MiB; append {append_s * 1e3:.1f} ms a line, load {load_s:.2f} s, find {find_s * 1e3:.1f} ms")
    assert append_s < 0.1
    assert load_s < 3.0
    assert find_s < 0.1
