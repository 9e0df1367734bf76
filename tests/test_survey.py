"""Modules that end, hang or crash the process that imports them cost one sentence, and nobody else anything."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import survey as surveys
from harness.errors import UserError
from harness.survey import survey
from tests.test_cli import ROOT, project

HEADER = """import ctypes, os, sys, time
from torch import Tensor
from harness.op import INHOUSE, Provider, candidate
from harness.schema.vocabulary import Contract, Kind


def made(name, provider=INHOUSE):
    @candidate(op="toy", kind=Kind.REWRITE, provider=provider, kernels=(), contract=Contract.TOLERANCE, name=name)
    def run(x: Tensor, w: Tensor) -> Tensor:
        return w * x

    return run


"""


@pytest.mark.defence("import_apart")
@pytest.mark.timeout(280)
def test_modules_that_take_their_process_down_are_named_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "TOUCH_LIMIT_S", 15.0)
    package = project(tmp_path) / "candidates" / "toy"
    modules = {
        "crashes": "print('bye', flush=True); ctypes.memset(1, 0, 1)",
        "hangs": "time.sleep(600)",
        "asks": "def missing():\n    os._exit(3)\nasking = made('asking', Provider('asker', missing, lambda: None))",
        "latin": "x = '\xe9'",
        "good": "good = made('good')\nprint('{\"kind\": \"survey\"}')",
    }
    for name, body in modules.items():
        (package / f"{name}.py").write_bytes((HEADER + body + "\n").encode("latin-1"))
    (package.parent / "broken").mkdir()
    (package.parent / "broken/__init__.py").touch()
    (package.parent / "broken/op.py").write_text("import os\nos.abort()\n")
    found = survey(tmp_path, ("broken", "toy"))
    with pytest.raises(UserError, match=r"^candidates/broken/op\.py: importing it is killed by SIGABRT"):
        found.of("broken")
    toy = found.of("toy")
    assert [candidate.id for candidate in toy.candidates] == ["inhouse.flipped", "inhouse.good"]
    asker = "provider asker"
    hangs, crashes, broken = (f"candidates/{name}.py" for name in ("toy/hangs", "toy/crashes", "broken/op"))
    assert found.broken == {
        crashes: f"{crashes}: importing it is killed by SIGSEGV (bye); mend it or leave it out.",
        hangs: f"{hangs}: importing it takes longer than 15 s; mend it or leave it out.",
        asker: f"{asker}: asking what it lacks ends the process (exit code 3); mend it or leave it out.",
        broken: f"{broken}: importing it is killed by SIGABRT; mend it or leave it out.",
    }
    known = {found.broken[what] for what in (hangs, crashes, asker)}
    assert known < set(toy.problems)
    (latin,) = set(toy.problems) - known
    assert latin.startswith("candidates/toy/latin.py does not import: SyntaxError: (unicode error)")
    assert toy.manifest == ()


@pytest.mark.timeout(280)
def test_extra_that_takes_its_process_down_is_bad_input(tmp_path: Path) -> None:
    project(tmp_path)
    bad = tmp_path / "bad.py"
    bad.write_text("import os; os._exit(7)\n")
    with pytest.raises(UserError) as raised:
        survey(tmp_path, ("toy",), (str(bad),))
    assert str(raised.value) == (
        f"--candidates {bad}: importing it ends the process (exit code 7); mend it or leave it out."
    )


@pytest.mark.timeout(280)
def test_nothing_is_left_when_the_command_line_is_killed(tmp_path: Path) -> None:
    """kill -9 while a candidate hangs at import."""
    package = project(tmp_path) / "candidates" / "toy"
    (package / "hangs.py").write_text(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                                      "time.sleep(600)\n")  # fmt: skip
    code = f"from pathlib import Path; from harness.survey import survey; survey(Path({str(tmp_path)!r}), ('toy',))"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    limit = time.monotonic() + 120
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    child = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    limit = time.monotonic() + 20
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < limit
        time.sleep(0.1)
