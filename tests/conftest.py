"""Spares the cores; skips GPU tests where there is none; runs under `tests.defences` with one defence switched off."""

import os

import pytest

from tests.lean import be_lean
from tests.switches import OFF_VARIABLE, switch_off

be_lean()


def pytest_configure(config: pytest.Config) -> None:
    """Switch off the defence that `python -m tests.defences` named, before any test module is imported."""
    if name := os.environ.get(OFF_VARIABLE):
        switch_off(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked `gpu` skips with the reason where torch sees no NVIDIA GPU."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU: torch sees none here"))
