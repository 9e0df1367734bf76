"""Switch each defence off in turn and see its tests go red: `make test-defences` or `python -m tests.defences [NAME]`.

A defence is a name in `tests.switches.OFF`; its tests are those marked `defence(name)`. All of them must pass as the
harness is. Then each defence is switched off in a process of its own, where each of its test functions must fail (a
parametrised one for at least one parameter). Exit 1 if one stays green, has no test, or fails with everything on.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console
from rich.table import Table

from tests.lean import be_lean
from tests.switches import OFF, OFF_VARIABLE

TESTS = Path(__file__).parent
_PATIENCE = 5
Outcomes = dict[str, str]
"""Node id to `passed`, `failed` or `skipped`."""
Found = tuple[dict[str, list[str]], Outcomes, str]
"""Node ids by defence, outcomes, pytest's output."""
Job = tuple[str | None, tuple[str, ...]]
"""The defence to switch off, or None, and pytest's arguments."""


@dataclass
class _Collected:
    """A pytest plugin that notes which tests name which defence, and what became of them.

    Several run at once here, so a test gets several times its own time limit.
    """

    by_defence: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Outcomes = field(default_factory=dict)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep only the tests that name a defence, once the slow ones are gone."""
        for item in items:
            own = item.get_closest_marker("timeout")
            limit_s = own.args[0] if own else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(_PATIENCE * limit_s), append=False)
            for marker in item.iter_markers("defence"):
                self.by_defence[marker.args[0]].append(item.nodeid)
        items[:] = [item for item in items if item.get_closest_marker("defence")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of set-up, call and tear-down."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


def _pytest(off: str | None, arguments: Sequence[str], results: Connection) -> None:
    """Run pytest in this (forked) process and send what it found."""
    os.environ.pop(OFF_VARIABLE, None)
    if off is not None:
        os.environ[OFF_VARIABLE] = off
    found, output = _Collected(), io.StringIO()
    options = ["-q", "--show-capture=no", "-p", "no:cacheprovider", "-m", "not slow"]
    with redirect_stdout(output), redirect_stderr(output), tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        pytest.main([*options, *arguments], [found])
    results.send((dict(found.by_defence), found.outcomes, output.getvalue()))


def _forked(jobs: Sequence[Job]) -> Iterator[tuple[Job, Found]]:
    """pytest in forks of this process, so that torch is imported once; as many at a time as there are cores, up to 4.

    Each has a temporary folder of its own.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(jobs), dict[Connection, tuple[Job, BaseProcess]]()
    while waiting or running:
        while waiting and len(running) < min(os.cpu_count() or 1, 4):
            job = waiting.pop(0)
            receiving, sending = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=_pytest, args=(*job, sending))
            process.start()
            sending.close()
            running[receiving] = (job, process)
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            job, process = running.pop(ready)
            try:
                found: Found = ready.recv()
            except EOFError:
                found = ({}, {}, "the process died")
            process.join()
            yield job, found


def _load_what_forks_share() -> None:
    """Import the slow things before the first fork; nothing of the harness, which a switch must be able to precede."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in (
            "torch._inductor.compile_fx",
            "torch.profiler",
            "scipy.stats",
            "pydantic",
            "typer",
        ):
            importlib.import_module(module)


def _function(node: str) -> str:
    return node.partition("[")[0]


def _stayed_green(nodes: Sequence[str], outcomes: Outcomes) -> list[str]:
    """Test functions none of whose cases failed; one that did not run at all counts as green."""
    red = {_function(node) for node in nodes if outcomes.get(node) == "failed"}
    skipped = {_function(node) for node in nodes if outcomes.get(node) == "skipped"}
    return sorted({_function(node) for node in nodes} - red - skipped)


def main(names: list[str]) -> int:
    """Check the named defences, or all; the exit code."""
    console = Console()
    be_lean()
    _load_what_forks_share()
    start = monotonic()
    ((_, (by_defence, _, output)),) = _forked([(None, ("--collect-only", str(TESTS)))])
    wanted = names or sorted({*by_defence, *OFF})
    if unknown := [name for name in wanted if name not in OFF and name not in by_defence]:
        console.print(f"[red]there is no defence {', '.join(unknown)}[/]")
        return 1
    nodes = sorted({node for name in wanted for node in by_defence.get(name, [])})
    if not nodes:
        console.print(output, markup=False)
        return 1
    console.print(f"{len(wanted)} defences, {len(nodes)} tests; first with everything on", highlight=False)
    files = sorted({node.partition("::")[0] for node in nodes})
    shards: list[Job] = [(None, tuple(node for node in nodes if node.partition("::")[0] == file)) for file in files]
    on: Outcomes = {}
    for _, (_, outcomes, output) in _forked(shards):
        on |= outcomes
        if "failed" in outcomes.values():
            console.print(output[-3000:], markup=False, highlight=False)
    if red := [node for node in nodes if on.get(node, "did not run") not in ("passed", "skipped")]:
        console.print(f"[red]with every defence on these are not green[/]: {', '.join(red)}", highlight=False)
        return 1
    verdicts = {name: _without_a_run(name, by_defence.get(name, []), on) for name in wanted}
    jobs: list[Job] = [(name, tuple(by_defence[name])) for name, verdict in verdicts.items() if not verdict]
    for (off, nodes_off), (_, outcomes, output) in _forked(jobs):
        assert off is not None
        verdicts[off] = _verdict(nodes_off, outcomes, output)
        console.print(f"  {off}: {verdicts[off]}", highlight=False)
    table = Table(title="each defence switched off in turn", title_justify="left", title_style="bold")
    for column in ("defence", "tests", "switched off"):
        table.add_column(column)
    for name, verdict in verdicts.items():
        table.add_row(name, str(len(by_defence.get(name, []))), verdict)
    console.print(table)
    bad = sum(verdict.startswith("[red]") for verdict in verdicts.values())
    console.print(f"{len(wanted) - bad} of {len(wanted)} in {monotonic() - start:.0f} s", highlight=False)
    return 1 if bad else 0


def _without_a_run(name: str, nodes: list[str], on: Outcomes) -> str:
    """What can be said of a defence without switching it off, or ""."""
    if name not in OFF:
        return "[red]no switch in tests/switches.py[/]"
    if not nodes:
        return "[red]no test is marked defence(...) with this name[/]"
    return "[yellow]skipped here[/]" if all(on[node] == "skipped" for node in nodes) else ""


def _verdict(nodes: Sequence[str], outcomes: Outcomes, output: str) -> str:
    if not outcomes:
        return f"[red]nothing ran: {' '.join(output.strip().splitlines()[-1:])}[/]"
    if green := _stayed_green(nodes, outcomes):
        return f"[red]stays green: {', '.join(node.rpartition('::')[2] for node in green)}[/]"
    return "[green]its tests go red[/]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
