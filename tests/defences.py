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
import warnings
from collections import defaultdict
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console
from rich.table import Table

from tests.switches import OFF, OFF_VARIABLE

TESTS = Path(__file__).parent
Outcomes = dict[str, str]
"""Node id to `passed`, `failed` or `skipped`."""


@dataclass
class _Collected:
    """A pytest plugin that notes which tests name which defence, and what became of them."""

    by_defence: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    outcomes: Outcomes = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep only the tests that name a defence."""
        for item in items:
            for marker in item.iter_markers("defence"):
                self.by_defence[marker.args[0]].append(item.nodeid)
        items[:] = [item for item in items if item.get_closest_marker("defence")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of set-up, call and tear-down."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


def _pytest(off: str | None, arguments: list[str], results: Connection) -> None:
    """Run pytest in this (forked) process and send what it found."""
    os.environ.pop(OFF_VARIABLE, None)
    if off is not None:
        os.environ[OFF_VARIABLE] = off
    found, output = _Collected(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        pytest.main(["-q", "--show-capture=no", "-p", "no:cacheprovider", "-o", "timeout=120", *arguments], [found])
    results.send((dict(found.by_defence), found.outcomes, output.getvalue()))


def _forked(off: str | None, arguments: list[str]) -> tuple[dict[str, list[str]], Outcomes, str]:
    """pytest in a fork of this process: torch is imported once for all of them."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_pytest, args=(off, arguments, sending))
    process.start()
    sending.close()
    try:
        found: tuple[dict[str, list[str]], Outcomes, str] = receiving.recv()
    except EOFError:
        found = ({}, {}, "the process died")
    process.join()
    return found


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


def _stayed_green(nodes: list[str], outcomes: Outcomes) -> list[str]:
    """Test functions none of whose cases failed; one that did not run at all counts as green."""
    red = {_function(node) for node in nodes if outcomes.get(node) == "failed"}
    skipped = {_function(node) for node in nodes if outcomes.get(node) == "skipped"}
    return sorted({_function(node) for node in nodes} - red - skipped)


def main(names: list[str]) -> int:
    """Check the named defences, or all; the exit code."""
    console = Console()
    _load_what_forks_share()
    start = monotonic()
    by_defence, _, output = _forked(None, ["--collect-only", str(TESTS)])
    wanted = names or sorted({*by_defence, *OFF})
    if unknown := [name for name in wanted if name not in OFF and name not in by_defence]:
        console.print(f"[red]there is no defence {', '.join(unknown)}[/]")
        return 1
    nodes = sorted({node for name in wanted for node in by_defence.get(name, [])})
    if not nodes:
        console.print(output)
        return 1
    console.print(f"{len(wanted)} defences, {len(nodes)} tests; first with everything on", highlight=False)
    _, on, output = _forked(None, nodes)
    if red := [node for node in nodes if on.get(node, "did not run") not in ("passed", "skipped")]:
        console.print(output[-4000:], markup=False, highlight=False)
        console.print(f"[red]with every defence on these are not green[/]: {', '.join(red)}", highlight=False)
        return 1
    table = Table(title="each defence switched off in turn", title_justify="left", title_style="bold")
    for column in ("defence", "tests", "switched off", "s"):
        table.add_column(column)
    bad = 0
    for name in wanted:
        began = monotonic()
        verdict = _verdict(name, by_defence.get(name, []), on)
        bad += verdict.startswith("[red]")
        table.add_row(name, str(len(by_defence.get(name, []))), verdict, f"{monotonic() - began:.0f}")
        console.print(f"  {name}: {verdict}", highlight=False)
    console.print(table)
    console.print(f"{len(wanted) - bad} of {len(wanted)} in {monotonic() - start:.0f} s", highlight=False)
    return 1 if bad else 0


def _verdict(name: str, nodes: list[str], on: Outcomes) -> str:
    if name not in OFF:
        return "[red]no switch in tests/switches.py[/]"
    if not nodes:
        return "[red]no test is marked defence(...) with this name[/]"
    if all(on[node] == "skipped" for node in nodes):
        return "[yellow]skipped here[/]"
    _, outcomes, output = _forked(name, nodes)
    if not outcomes:
        return f"[red]nothing ran: {output.strip().splitlines()[-1:]}[/]"
    if green := _stayed_green(nodes, outcomes):
        return f"[red]stays green: {', '.join(node.rpartition('::')[2] for node in green)}[/]"
    return "[green]red[/]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
