"""Every defence that a test names has a switch that fits the sources; switching them off is `tests.defences`."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.defences import _stayed_green, _verdict
from tests.edits import EDITS
from tests.switches import OFF

TESTS = Path(__file__).parent


def test_every_named_defence_has_a_switch_and_every_switch_a_test() -> None:
    pattern = re.compile(r'^@pytest\.mark\.defence\("([a-z0-9_]+)"\)$', re.MULTILINE)
    named = {name for file in TESTS.rglob("test_*.py") for name in pattern.findall(file.read_text(encoding="utf-8"))}
    assert named == set(OFF)
    assert len(named) > 70


@pytest.mark.parametrize("name", EDITS)
def test_edited_lines_stand_in_the_sources_once(name: str) -> None:
    for module, old, new in EDITS[name]:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert Path(spec.origin).read_text(encoding="utf-8").count(old) == 1, (module, old)
        assert new != old


def test_a_function_is_red_when_one_of_its_cases_is() -> None:
    nodes = ["t.py::a[1]", "t.py::a[2]", "t.py::b", "t.py::c"]
    assert _stayed_green(nodes, {"t.py::a[1]": "failed", "t.py::a[2]": "passed", "t.py::b": "failed"}) == ["t.py::c"]
    red = dict.fromkeys(nodes, "failed")
    assert _verdict(nodes, red, "") == "[green]its tests go red[/]"
    assert _verdict(nodes, red | {"t.py::b": "passed"}, "") == "[red]stays green: b[/]"
    assert "nothing ran" in _verdict(nodes, {}, "no such module")
