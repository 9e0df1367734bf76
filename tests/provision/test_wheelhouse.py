"""Which wheels an offline host gets, at which versions."""

from pathlib import Path

import pytest

from harness.errors import ExitCode, UserError
from harness.provision import wheelhouse
from harness.provision.providers import REPOSITORY
from harness.provision.wheelhouse import DEFAULT, normalised, read_pins, requirements


def test_pins_are_read_by_normalised_name(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("# a comment\n\nPyYAML==6.0.4\npydantic_core==2.50.5  # why\ntorch==2.11.0 ; python_version>'3'\n")
    assert read_pins(pins) == {"pyyaml": "6.0.4", "pydantic-core": "2.50.5", "torch": "2.11.0"}


def test_a_line_that_pins_nothing_is_refused_with_its_place(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text("numpy==2.4.6\nrich>=13\n")
    with pytest.raises(UserError, match=r"constraints\.txt:2: 'rich>=13'"):
        read_pins(pins)


def test_versions_come_from_the_pins_unless_given() -> None:
    assert requirements(("PyYAML", "numpy==2.5.2"), {"pyyaml": "6.0.4"}) == ["PyYAML==6.0.4", "numpy==2.5.2"]
    with pytest.raises(UserError, match="six is not pinned"):
        requirements(("six",), {})


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_constraints_pin_what_is_installed(device: str) -> None:
    pins = read_pins(REPOSITORY / f"constraints-{device}.txt")
    assert {"torch", "triton", "numpy", "scipy", "pydantic", "pytest", "mypy"} <= pins.keys()
    assert pins["torch"] == {"cpu": "2.13.0", "gpu": "2.11.0"}[device]


def test_every_default_package_is_pinned() -> None:
    pins = read_pins(REPOSITORY / "constraints-gpu.txt")
    assert {normalised(name) for name in DEFAULT} <= pins.keys()


def test_the_host_is_told_how_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(wheelhouse, "download", lambda requirement, target, into, extra: asked.append(requirement))
    arguments = ["--python", "3.12", "--platform", "manylinux_2_28_x86_64", "--into", str(tmp_path)]
    assert wheelhouse.main(arguments) == ExitCode.DONE
    assert len(asked) == len(DEFAULT)
    assert f"pip install --no-index --find-links {tmp_path.name} pydantic typer" in capsys.readouterr().out


def test_a_bad_python_version_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert wheelhouse.main(["--python", "312", "--platform", "any"]) == ExitCode.BAD_INPUT
    assert "not of the form 3.12" in capsys.readouterr().err
