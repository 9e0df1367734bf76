"""The example of CONTRIBUTING.md is what it says: its code blocks are a project that is checked, gated and timed here.

Paths that the guides for contributors name are there.
"""

import re
import shutil
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.schema.measurement import ArmRecord, Measurement
from harness.schema.vocabulary import ArmStatus, RunStatus
from harness.store import Store
from tests.test_cli import ROOT, harness

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_HEADING = re.compile(r"### (\S+\.(?:py|yaml))")
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_PATH = re.compile(r"`((?:tests|candidates|harness|reports|shapes)/[\w./-]+)`")


def blocks() -> dict[str, str]:
    """The fenced text below every heading that is a path."""
    found: dict[str, str] = {}
    path, inside = "", False
    for line in GUIDE.splitlines(keepends=True):
        if heading := _HEADING.match(line):
            path = heading[1]
        elif line.startswith("```"):
            inside = bool(path) and not inside
            path = path if inside else ""
            if inside:
                assert path not in found, path
                found[path] = ""
        elif inside:
            found[path] += line
    return found


def example(folder: Path) -> Path:
    """The example as a project of its own, beside what all ops share."""
    for path, text in blocks().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for package in ("candidates", "candidates/glu"):
        (folder / package / "__init__.py").touch()
    shutil.copytree(ROOT / "candidates/_providers", folder / "candidates/_providers")
    shutil.copy(ROOT / "constraints-gpu.txt", folder)
    return folder


def measured(folder: Path, *narrowed: str) -> list[Measurement]:
    """Check the example, rehearse its cases, and return what is stored."""
    example(folder)
    done = harness(folder, "check")
    assert (done.returncode, done.stdout.strip()) == (ExitCode.DONE, "1 ops are in order"), done.stderr
    done = harness(folder, "bench", "glu", "--device", "cpu", "--seconds", "0.05", *narrowed)
    assert done.returncode == ExitCode.DONE, done.stderr
    found = [stored.measurement for stored in Store(folder / "results").load()]
    for one in found:
        assert one.status is RunStatus.MEASURED, one.reason
        kernel = arm(one, "inhouse.triton_glu")
        assert kernel.status is ArmStatus.REHEARSED, kernel.reason
    return found


def arm(of: Measurement, candidate: str) -> ArmRecord:
    """One candidate's."""
    found = of.arm(candidate)
    assert found is not None
    return found


def test_every_file_of_the_example_is_there() -> None:
    files = {f"candidates/glu/{name}.py" for name in ("op", "rewrite", "kernels", "inhouse")} | {"shapes/glu.yaml"}
    assert blocks().keys() == files
    assert not (ROOT / "candidates/glu").exists(), "the example must not be what the repository has anyway"


@pytest.mark.timeout(280)
def test_the_example_passes_the_gate(tmp_path: Path) -> None:
    (one,) = measured(tmp_path, "--case", "flux2-1024-image")
    assert "inhouse.quotient" in one.timed_arms
    gate = arm(one, "inhouse.triton_glu").gate
    assert gate is not None
    notes = " ".join(gate.notes)
    assert "declined by its guard: layout transposed: " in notes
    assert "raises on" not in notes, "nothing in a dim is no error"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_all_of_the_example(tmp_path: Path) -> None:
    alone, in_context, gelu = measured(tmp_path)
    assert (alone.context, in_context.context, gelu.context) == (None, "cat", None)
    assert {"inhouse.quotient"} <= set(alone.timed_arms) & set(in_context.timed_arms)
    declined = arm(gelu, "inhouse.quotient")
    assert (declined.status, declined.reason) == (ArmStatus.INELIGIBLE, "rewrites silu, the case has gelu")


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "README.md", "reports/upstream_faults.md"])
def test_paths_that_a_guide_names_are_there(guide: str) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    beside = (ROOT / guide).parent
    named = [beside / link for link in _LINK.findall(text)] + [ROOT / path for path in _PATH.findall(text)]
    made = {"candidates/glu", "shapes/glu"}
    missing = [str(path) for path in named if not path.exists() and not any(part in str(path) for part in made)]
    assert named
    assert missing == []
