"""Evidence is no bottleneck: reading it all, resuming and deciding stay far below the time of one measurement."""

import time
from collections.abc import Callable
from pathlib import Path

from harness.report import render
from harness.store import Store, resume_key_of
from harness.verdict import decide
from tests.builders import NO_CLAIMS, PRESENT, Arm, case, manifest, measurement, stored

LINES = 60
"""About what one op leaves on one card: 20 cases, three runs."""


def best_s(run: Callable[[], object], repeats: int = 3) -> float:
    """CPU time: others on the machine make nothing slower here."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
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
    find_s = best_s(lambda: store.find(resume_key_of(lines[-1]), lines[-1].op))
    print(f"{size_mib:.1f} MiB; append {append_s * 1e3:.1f} ms a line, load {load_s:.2f} s, find {find_s * 1e3:.1f} ms")
    assert append_s < 0.1
    assert load_s < 3.0
    assert find_s < 0.1


def test_deciding_and_rendering_an_op_are_cheap() -> None:
    """What `harness bench` adds at its end, and what `harness verify` costs, for one op with all its cases."""
    arms = {f"inhouse.k{n}": Arm(1 + n / 20) for n in range(8)}
    cases = [case(f"c{n}") for n in range(20)]
    lines = [measurement(arms, of=of, blocks=100, seed=seed) for of in cases for seed in (1, 2)]
    evidence = stored(*lines)
    of = manifest(*cases)
    verdicts = decide(evidence, {of.op: of}, NO_CLAIMS, PRESENT)
    decide_s = best_s(lambda: decide(evidence, {of.op: of}, NO_CLAIMS, PRESENT), repeats=1)
    render_s = best_s(lambda: render(verdicts), repeats=1)
    print(f"{len(lines)} measurements: decide {decide_s:.2f} s, render {render_s:.2f} s")
    assert decide_s < 15.0
    assert render_s < 5.0
