"""The commands there are: targets of the Makefile, verbs of `harness` with their options."""

import re
from functools import cache
from pathlib import Path

import typer
from typer.core import TyperGroup

from harness.cli import app

ROOT = Path(__file__).parent.parent


def make_targets() -> set[str]:
    """Targets that the Makefile lists in its help."""
    return set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def make_variables() -> set[str]:
    """Variables that a person may give."""
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([A-Z_]+) \?=", text, re.MULTILINE)) | {"PYTHON", "BASE_PYTHON"}


@cache
def verbs() -> dict[str, set[str]]:
    """Verb to its options."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in group.commands.items()
    }
